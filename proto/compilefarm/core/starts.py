"""How long workers take until they are ready, by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compilefarm.v1 import start_pb2 as wire

# The phases and what they are spent on, in the order in which they begin.
PHASES: Mapping[str, str] = {
    "node": "a cluster has no node for it yet, or starts its actor",
    "devices": "the driver is asked for GPUs",
    "sandbox": "a sandbox is tried",
    "process": "processes are started and forked, and what is not counted below",
    "torch": "the interpreter starts, and imports torch",
    "inductor": "Inductor is imported; on a GPU, Triton's driver module is built",
    "practice": "something small is compiled, since the first compile of a process takes longer",
    "cuda": "the GPU is started",
    "operators": "modules of `serve --import` are imported, and the environment is described",
    "toolchain": "what the C++ compiler can do is looked up, and tried where nobody has found out",
}


@dataclass(frozen=True, slots=True)
class StartPhase:
    """A phase of the start of a worker.

    Attributes:
        name: one of PHASES.
        seconds: its duration.
    """

    name: str
    seconds: float


class StartClock:
    """Measures the phases of a start.

    Args:
        began_seconds: when it began, by time.monotonic; None: now.
        phases: that came before.
    """

    def __init__(self, *, began_seconds: float | None = None, phases: Iterable[StartPhase] = ()) -> None:
        self._seconds: dict[str, float] = {}
        self._since_seconds = time.monotonic() if began_seconds is None else began_seconds
        self._add(phases)

    @property
    def phases(self) -> tuple[StartPhase, ...]:
        """Those that have ended, each once, in the order in which they began."""
        return tuple(StartPhase(name, seconds) for name, seconds in self._seconds.items())

    def end(self, name: str) -> None:
        """Notes that a phase has ended, which began with the end of the one before."""
        self.end_of((), rest=name)

    def end_of(self, measured: Iterable[StartPhase], *, rest: str) -> None:
        """Notes the end of phases of which something else has measured some; what is left of the time is `rest`."""
        now_seconds, parts = time.monotonic(), tuple(measured)
        left_seconds = now_seconds - self._since_seconds - sum(each.seconds for each in parts)
        self._since_seconds = now_seconds
        self._add((StartPhase(rest, max(0.0, left_seconds)), *parts))

    def go_on(self) -> None:
        """Begins the next phase now: what was since the last one is nobody's."""
        self._since_seconds = time.monotonic()

    def _add(self, phases: Iterable[StartPhase]) -> None:
        for each in phases:
            self._seconds[each.name] = self._seconds.get(each.name, 0.0) + each.seconds


def process_began_seconds() -> float:
    """When this process began, by time.monotonic, to a hundredth of a second."""
    # proc(5): field 22, in ticks since the machine was started; the name of the program may hold blanks.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(0.0, age_seconds)


def start_words(phases: Iterable[StartPhase]) -> str:
    """A start in words: "8.3 s (torch 2.1 s, inductor 4.0 s, ...)"; phases of less than 50 ms are left out."""
    listed = list(phases)
    named = [f"{each.name} {each.seconds:.1f} s" for each in listed if each.seconds >= 0.05]
    return f"{sum(each.seconds for each in listed):.1f} s" + (f" ({', '.join(named)})" if named else "")


def to_wire(phases: Iterable[StartPhase]) -> list[wire.StartPhase]:
    """Phases as messages."""
    return [wire.StartPhase(name=each.name, seconds=each.seconds) for each in phases]


def from_wire(phases: Iterable[wire.StartPhase]) -> tuple[StartPhase, ...]:
    """Phases of messages; those with names that this release does not know are left out."""
    return tuple(StartPhase(each.name, each.seconds) for each in phases if each.name in PHASES)
