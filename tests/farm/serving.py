"""Starts and ends farms the way a user does, and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilefarm.serving.farm import READY_LINE
from compilefarm.serving.safeguards import root_allowed
from tests.processes import descendants

COMMAND = (sys.executable, "-m", "compilefarm.cli.main")


@dataclass(frozen=True, kw_only=True)
class ServedFarm:
    """A running farm."""

    address: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, *arguments: str) -> str:
        """What a command of ours says about this farm."""
        return run(*arguments, "--address", self.address).stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ask("status", "--json"))
        return status

    def count(self, name: str) -> int:
        # 64-bit numbers are strings in JSON, and zero is left out.
        return int(self.status().get("counters", {}).get(name, 0))

    def log_lines(self) -> list[dict[str, str]]:
        """The log, if it is written as JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def children(self) -> set[int]:
        return descendants(self.process.pid)

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command of ours to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment
    )


@contextlib.contextmanager
def serve(
    folder: Path,
    arguments: Sequence[str] = (),
    *,
    device: str = "cpu",
    modules: Sequence[str] = (),
    module_folder: Path | None = None,
) -> Iterator[ServedFarm]:
    """A farm.

    Args:
        folder: for its store and its log.
        arguments: further options.
        device: of its workers.
        modules: what its workers import because it registers operators.
        module_folder: where those are.
    """
    log = folder / "farm.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *COMMAND,
                "serve",
                *root_allowed(),
                "--listen",
                "127.0.0.1:0",
                "--store",
                str(folder / "store"),
                "--state",
                str(folder / "state"),
                "--device",
                device,
                *(f"--import={module}" for module in modules),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=None if module_folder is None else os.environ | {"PYTHONPATH": _extended_path(module_folder)},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith(READY_LINE), log.read_text()
        yield ServedFarm(address=line.removeprefix(READY_LINE).strip(), process=process, log=log)
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


def _extended_path(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def bare_environment(folder: Path, address: str) -> dict[str, str]:
    """Variables of a pod without any compiler, and with empty caches."""
    return {
        "COMPILEFARM_ADDRESS": address,
        "COMPILEFARM_SELF_CHECK": "1",
        "PATH": "",
        "CC": "/bin/false",
        "CXX": "/bin/false",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
