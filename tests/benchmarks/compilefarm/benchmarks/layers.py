"""How what a farm costs grows with the graph: decoders of more and more layers, beside a warm local cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compilefarm.benchmarks.comparison import compare
from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.benchmarks.report import Measured
from compilefarm.benchmarks.results import phase_words
from compilefarm.benchmarks.runner import Subject

_PHASES = ("dynamo", "encode", "wait", "fetch", "load", "first_call")


def grow_layers(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures a hit for each number of layers."""
    for size in sizes:
        subject = Subject(model=f"llama-{size}", device="cpu", mode=None)
        place = folder / f"layers-{size}"
        place.mkdir()
        found = compare(subject, ways=("local-warm", "farm-hit"), rounds=1, folder=place, on_result=lambda *_: None)
        on_point(_point(size, *found))


def _point(size: int, local: Measured, farm: Measured) -> Point:
    ours, theirs = farm.typical(), local.typical()
    if ours is None or theirs is None:
        return Point(axis="layers", size=size, figures={}, reason=farm.reason or local.reason)
    figures = {
        "local-warm seconds": theirs.total_seconds,
        "farm-hit seconds": ours.total_seconds,
        "share of local-warm": ours.total_seconds / theirs.total_seconds,
        **{f"{phase_words(phase)} seconds": ours.seconds.get(phase, 0.0) for phase in _PHASES},
        "encode as a share of dynamo": ours.seconds["encode"] / ours.seconds["dynamo"],
        "sent bytes": ours.bytes_sent,
        "fetched bytes": ours.bytes_fetched,
    }
    return Point(axis="layers", size=size, figures=figures)
