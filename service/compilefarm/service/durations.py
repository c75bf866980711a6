"""Estimates how long compiles take, from those that were done."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.core.keys import Key
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest

# Before anything is known.
_GUESS_SECONDS = 60.0
_WEIGHT_OF_NEWEST = 0.3
# Options come from strangers, so there may be any number of kinds; those least recently seen are forgotten.
_MOST_KINDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Jobs that take about equally long.

    Attributes:
        platform: the release of torch and the device that it compiles for.
        options: digest of the compiler's options; tuning costs far more than anything else.
        size: the power of two that the number of nodes lies below.
    """

    platform: str
    options: str
    size: int


def kind_of(job: Job, *, key: Key) -> Kind:
    """The kind of a job with that key."""
    options = next(part.digest for part in key.parts if part.name == "options")
    return Kind(platform=_platform(job.environment), options=options, size=len(job.graph.nodes).bit_length())


class Durations:
    """Moving averages of the seconds that compiles took, for each kind and for ever wider ones around it."""

    def __init__(self) -> None:
        self._averages: dict[tuple[str | int, ...], float] = {}

    def estimate(self, kind: Kind) -> float:
        """Seconds that a job of this kind probably takes with its worker; of the nearest kind if it is new."""
        return next((self._averages[near] for near in _near(kind) if near in self._averages), _GUESS_SECONDS)

    def note(self, kind: Kind, *, seconds: float) -> None:
        """Learns from a compile that was just done."""
        for near in _near(kind):
            # Taken out first, so that what was seen last comes last.
            average = self._averages.pop(near, seconds)
            self._averages[near] = average + _WEIGHT_OF_NEWEST * (seconds - average)
        while len(self._averages) > _MOST_KINDS:
            del self._averages[next(iter(self._averages))]

    def note_earlier(self, kind: Kind, *, seconds: float) -> None:
        """Learns from a compile of another day, such as a stored artifact tells of, unless newer ones are known."""
        if _near(kind)[0] not in self._averages:
            self.note(kind, seconds=seconds)

    def note_stored(self, kind: Kind, manifest: Manifest) -> None:
        """Learns from a stored artifact how long its compile took, if it says so."""
        if manifest.timings:
            self.note_earlier(kind, seconds=sum(timing.seconds for timing in manifest.timings))


def _near(kind: Kind) -> tuple[tuple[str | int, ...], ...]:
    return (kind.platform, kind.options, kind.size), (kind.platform, kind.options), (kind.platform,), ()


def _platform(environment: Environment) -> str:
    device = environment.cuda.name if environment.HasField("cuda") else environment.cpu.architecture
    return f"torch {environment.torch}, {device}"
