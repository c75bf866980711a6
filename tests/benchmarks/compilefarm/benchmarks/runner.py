"""Starts the processes of a benchmark and collects what they measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from compilefarm.benchmarks.results import Result

_LONGEST_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured.

    Attributes:
        model: its name, see compilefarm.benchmarks.cases.
        device: "cpu" or "cuda".
        mode: as in torch.compile.
    """

    model: str
    device: str
    mode: str | None

    def options(self) -> list[str]:
        """How a process is told."""
        return ["--model", self.model, "--device", self.device, *(["--mode", self.mode] if self.mode else [])]


def run_process(
    way: str,
    subject: Subject,
    *,
    caches: Path,
    bundle: Path,
    variables: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Result:
    """Goes a way in a fresh process. One that fails has its reason in the result.

    Args:
        way: of compilefarm.benchmarks.ways.
        subject: what is measured.
        caches: the folder of its caches and temporary files.
        bundle: the folder of what one process leaves another.
        variables: further variables of its environment.
        log: where it writes what it has to say; None: where this process does.
    """
    caches.mkdir(exist_ok=True, parents=True)
    bundle.mkdir(exist_ok=True, parents=True)
    written = bundle / "result.json"
    written.unlink(missing_ok=True)
    # Inductor keeps its precompiled headers in the folder for temporary files, not in its cache.
    private = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TMPDIR": str(caches),
    }
    command = [sys.executable, "-m", "compilefarm.benchmarks.process", way, str(written), *subject.options()]
    status = _run(
        [*command, "--bundle", str(bundle)], environment={**os.environ, **private, **(variables or {})}, log=log
    )
    if not written.exists():
        return Result(error=f"its process ended with {status}")
    files = [file for file in caches.rglob("*") if file.is_file()]
    return replace(
        Result(**json.loads(written.read_text())),
        files=len(files),
        file_bytes=sum(file.stat().st_size for file in files),
    )


def _run(command: list[str], *, environment: Mapping[str, str], log: Path | None) -> str:
    output = None if log is None else log.open("ab")
    try:
        ended = subprocess.run(
            command, env=environment, check=False, stdout=output, stderr=output, timeout=_LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no result within {_LONGEST_SECONDS:.0f} s"
    finally:
        if output is not None:
            output.close()
    return f"status {ended.returncode}"
