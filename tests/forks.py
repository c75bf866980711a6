"""Programs that each begin in a process which has imported some module, and nothing else of what they are about."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping

_FORKING = """
import gc, importlib, json, os, sys
gc.disable()
for imported, program in json.load(sys.stdin):
    importlib.import_module(imported)
    gc.freeze()
    process = os.fork()
    if process == 0:
        gc.enable()
        # What it raises ends this process, and is its last word.
        exec(program, {})
        # To free all that is imported takes longer.
        os._exit(0)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def errors_of_forks(programs: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Runs programs one after the other, each in a fork of one process: importing torch takes longer than they do.

    Args:
        programs: by a name each, the module that is imported by then, and the source. The first one is forked from a
            process that has imported no other module.

    Returns:
        What the processes said of errors if one ended with an error; empty for those that ended well.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FORKING],
        input=json.dumps([*programs.values()]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(programs, _errors(done.stdout.split(), said=done.stderr), strict=True))


def _errors(codes: Iterable[str], *, said: str) -> list[str]:
    return ["" if code == "0" else f"ended with {code}:\n{said}" for code in codes]
