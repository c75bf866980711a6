"""Pods that are forks of a process which has imported torch: to import it takes several times what most of them do."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lean import end, run_source

ROOT = Path(__file__).resolve().parents[1]
# What compiles import sooner or later, and nothing of the farm's.
_IMPORTED = ("torch", "torch._dynamo", "torch._inductor.compile_fx")
# Stands before a program, where others name a module.
_SOURCE = "-c"


@dataclass(frozen=True)
class ForkedPods:
    """Starts pods, one at a time.

    All have the seed of hashes of the process that they are forks of. Where it matters that those differ, one of two
    pods is a process of its own.
    """

    _origin: subprocess.Popen[str]

    def execute(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -c PROGRAM ARGUMENTS` to its end, in the environment of this process."""
        return self._fork(_SOURCE, program, *arguments, environment=os.environ)

    def run(self, module: str, *arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Runs `python -m MODULE ARGUMENTS` to its end, in an environment of its own but for what is read when torch is
        imported.
        """
        return self._fork(module, *arguments, environment=environment)

    def _fork(self, *command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._origin.stdin is not None
        assert self._origin.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            streams = Path(folder, "stdout"), Path(folder, "stderr")
            task = {"command": command, "environment": {**environment}, "streams": [*map(str, streams)]}
            print(json.dumps(task), file=self._origin.stdin, flush=True)
            code = int(self._origin.stdout.readline())
            return subprocess.CompletedProcess([*command], code, *(path.read_text() for path in streams))


@contextmanager
def forking(environment: Mapping[str, str]) -> Iterator[ForkedPods]:
    """A process that has imported torch in an environment, and waits for pods to start."""
    command = [sys.executable, "-m", "tests.forked_pods"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as origin:
        yield ForkedPods(origin)


def main() -> None:
    """Forks for each line of its input; prints how each fork has ended."""
    gc.disable()
    for name in _IMPORTED:
        importlib.import_module(name)
    # Searches for garbage would have each fork copy what it shares with this process.
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            become_pod(**json.loads(line))
            end()
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    end()


def become_pod(command: list[str], environment: Mapping[str, str], streams: list[str]) -> None:
    """Runs a module or a program, in the process that is its own from now on."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    # It was decided in the environment of the other process.
    tempfile.tempdir = None
    if command[0] == _SOURCE:
        sys.argv[1:] = command[2:]
        run_source(command[1])
    else:
        sys.argv[1:] = command[1:]
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
