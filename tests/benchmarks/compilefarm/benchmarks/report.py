"""What a benchmark has found, as a file that is kept."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compilefarm.benchmarks.results import Result
from compilefarm.core.errors import FarmError

_FORMAT = 1


class UnusableReport(FarmError):
    """A file is no report of a benchmark."""


@dataclass(kw_only=True)
class Measured:
    """A way for a model.

    Attributes:
        model: name of the model.
        way: name of the way.
        results: one for each round that went well.
        reason: why there is none, or no more; empty if all went well.
    """

    model: str
    way: str
    results: list[Result] = field(default_factory=list)
    reason: str = ""

    def typical(self) -> Result | None:
        """The round with the median of the times to the first result, of two the quicker one; None without any."""
        ordered = sorted(self.results, key=lambda result: result.total_seconds)
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    def spread(self) -> tuple[float, float]:
        """The shortest and the longest time to the first result, in seconds."""
        seconds = [result.total_seconds for result in self.results]
        return min(seconds), max(seconds)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A benchmark.

    Attributes:
        machine: facts of the machine, in words by name.
        device: "cpu" or "cuda".
        mode: as in torch.compile.
        rounds: that were asked for.
        measured: what was found, model by model.
    """

    machine: dict[str, str]
    device: str
    mode: str | None
    rounds: int
    measured: Sequence[Measured]

    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(way.model for way in self.measured))

    def of_model(self, model: str) -> list[Measured]:
        """What was found for a model."""
        return [way for way in self.measured if way.model == model]


def write_report(report: Report, path: Path) -> None:
    """Writes a report as JSON."""
    path.write_text(json.dumps({"format": _FORMAT, **asdict(report)}, indent=1) + "\n")


def read_report(path: Path) -> Report:
    """Reads what `write_report` wrote.

    Raises:
        UnusableReport: it cannot be read, or is of another format.
    """
    try:
        content: Any = json.loads(path.read_text())
        if content.pop("format") != _FORMAT:
            raise UnusableReport(f"{path} is a report of another release: run the benchmark again")
        measured = [
            Measured(**{**way, "results": [Result(**result) for result in way["results"]]})
            for way in content.pop("measured")
        ]
        return Report(**content, measured=measured)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableReport(f"{path} is no report of a benchmark: {error}") from error


def describe_machine(device: str) -> dict[str, str]:
    """The facts of this machine that decide the figures."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "compilefarm": _version("compilefarm"),
    }
    if device == "cuda":
        facts["gpu"] = _gpu()
    return facts


def _gpu() -> str:
    # In a process of its own: this one is not to hold a part of the GPU.
    program = "import torch; print(f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "none that torch can use"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
