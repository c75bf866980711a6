"""Runs a program of the tests that imports torch, as Python runs it, but for searches for garbage among modules, and
for freeing all of them at the end, one by one: half of the time that such a process takes.

    python tests/lean.py -m MODULE ARGUMENTS
    python tests/lean.py -c PROGRAM ARGUMENTS
    python tests/lean.py FILE ARGUMENTS

Not for programs that are about their end, about garbage or about how torch is imported.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import sys
import threading
import types
from pathlib import Path
from typing import NoReturn

# Stands behind the interpreter in a command.
LEAN = str(Path(__file__).resolve())
# As in the process of the tests (conftest.py).
_COLLECT_EVERY = 10_000


def main() -> None:
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
    match sys.argv[1:]:
        case ["-m", module, *_]:
            del sys.argv[:2]
            sys.path[0] = os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *_]:
            sys.argv[:3] = ["-c"]
            sys.path[0] = ""
            run_source(program)
        case [file, *_]:
            del sys.argv[0]
            sys.path[0] = str(Path(file).parent)
            runpy.run_path(file, run_name="__main__")
    end()


def begin() -> None:
    """Has this process, which is of a pool (concurrent.futures), do without both, too."""
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
    atexit.register(_leave, process=os.getpid())


def _leave(*, process: int) -> None:
    # Of what it has forked, the status says something.
    if os.getpid() == process:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def run_source(program: str) -> None:
    """Runs a program as `python -c` does."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, vars(sys.modules["__main__"]))


def end() -> NoReturn:
    """Ends this process as Python ends one whose program has ended well, but for freeing what it has imported: of most
    pods that takes longer than what they do.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as the forks of multiprocessing wait for their threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
