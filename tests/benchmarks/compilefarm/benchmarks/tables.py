"""Reports as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from compilefarm.benchmarks.alternatives import ALTERNATIVES
from compilefarm.benchmarks.models import MODELS
from compilefarm.benchmarks.points import Point
from compilefarm.benchmarks.report import Measured, Report
from compilefarm.benchmarks.results import PHASES, Result, phase_meaning, phase_words
from compilefarm.cli.words import seconds_words, size_words

# Heading, and cell of a way and its typical round.
Column = tuple[str, Callable[[Measured, Result], str]]

NOTE = (
    "Seconds from a model to its first result, in fresh processes: the median of the rounds with its phases, the "
    "shortest and the longest. Not counted: importing torch, making the model, starting CUDA. moved: sent, fetched, or "
    "read as a file. left: in the process's folder for caches. programs: started by the process; compilers: of C++ "
    "among them. measured: variants of kernels on a GPU. a later call: a median. of: largest value in eager."
)


def show_report(report: Report, to: Console) -> None:
    """Prints a table for each model, and what the columns mean."""
    facts = ", ".join(f"{name} {fact}" for name, fact in report.machine.items())
    to.print(f"[bold]{escape(facts)}[/bold]; device {report.device}, mode {report.mode or 'default'}", highlight=False)
    for model in report.models():
        ways = report.of_model(model)
        to.print(f"\n[bold]{escape(title(model, ways))}[/bold], rounds: {report.rounds}")
        to.print(_table(ways, timing_columns(ways)))
        to.print(_table(ways, work_columns()))
        for way in ways:
            if way.reason:
                to.print(f"{way.way}: none, or not all rounds: {way.reason}", markup=False)
    to.print(f"\n{NOTE}", markup=False)
    for phase in phases_of(report.measured):
        to.print(f"{phase_words(phase)}: {phase_meaning(phase)}.", markup=False)


def phases_of(ways: Sequence[Measured]) -> list[str]:
    """The phases that any way has, in order."""
    seen = {phase for way in ways for result in way.results for phase in result.seconds}
    return [phase for phase in PHASES if phase in seen]


def timing_columns(ways: Sequence[Measured]) -> list[Column]:
    """Seconds to the first result, and the phases that any way has."""

    def phase_column(phase: str) -> Column:
        return phase_words(phase), lambda _, result: _seconds(result.seconds.get(phase))

    return [
        ("seconds", lambda _, result: f"{result.total_seconds:.2f}"),
        ("from", lambda way, _: f"{way.spread()[0]:.2f}"),
        ("to", lambda way, _: f"{way.spread()[1]:.2f}"),
        *map(phase_column, phases_of(ways)),
    ]


def work_columns() -> list[Column]:
    """What the seconds were spent on, and what came of them."""
    return [
        ("moved", lambda _, result: _size(result.bytes_sent + result.bytes_fetched)),
        ("left", lambda _, result: f"{result.files} files, {size_words(result.file_bytes)}" if result.files else ""),
        ("programs", lambda _, result: str(result.programs or "")),
        ("compilers", lambda _, result: str(result.compiler_runs or "")),
        ("measured", lambda _, result: str(result.benchmarks or "")),
        ("peak memory", lambda way, _: size_words(_median(way, lambda result: result.peak_memory_bytes))),
        ("a later call", lambda way, _: seconds_words(_median(way, lambda result: result.call_seconds))),
        ("off eager", lambda way, _: _difference(max(result.difference for result in way.results))),
        ("of", lambda _, result: f"{result.magnitude:.2g}"),
    ]


def title(model: str, ways: Sequence[Measured]) -> str:
    """The model in words."""
    named = f"{model}: {MODELS[model]}" if model in MODELS else model
    parameters = next((result.parameters for way in ways for result in way.results), 0)
    return f"{named}, {parameters / 1e6:.1f} million parameters" if parameters else named


def _table(ways: Sequence[Measured], shown: Sequence[Column]) -> Table:
    table = Table("way")
    for heading, _ in shown:
        table.add_column(heading, justify="right")
    for way in ways:
        typical = way.typical()
        if typical is not None:
            table.add_row(way.way, *(cell(way, typical) for _, cell in shown))
    return table


def point_words(point: Point) -> str:
    """A point in one line."""
    return ", ".join(f"{_without_unit(name)} {_figure(name, figure)}" for name, figure in point.figures.items())


def point_columns(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """The headings of the figures of an axis, and a row for each point: its size, and its figures."""
    names = list(dict.fromkeys(name for point in points for name in point.figures))
    rows = [
        [f"{point.size:,}", *(_figure(name, point.figures[name]) if name in point.figures else "" for name in names)]
        for point in points
    ]
    return [_without_unit(name) for name in names], rows


def show_points(points: Sequence[Point], to: Console) -> None:
    """Prints a table for each axis."""
    for axis in dict.fromkeys(point.axis for point in points):
        known = [point for point in points if point.axis == axis]
        headings, rows = point_columns(known)
        table = Table(axis)
        for heading in headings:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        to.print()
        to.print(table)


def stories(ways: Sequence[str]) -> dict[str, str]:
    """What each way is, in words."""
    return {way: ALTERNATIVES[way].story for way in ways if way in ALTERNATIVES}


def _without_unit(name: str) -> str:
    return name.removesuffix(" seconds").removesuffix(" bytes")


def _figure(name: str, figure: float) -> str:
    if name.endswith("bytes"):
        return size_words(figure)
    if name.endswith("seconds"):
        return seconds_words(figure)
    return f"{figure:.3g}"


def _median(way: Measured, figure: Callable[[Result], float]) -> float:
    return statistics.median(figure(result) for result in way.results)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _size(size_bytes: int) -> str:
    return size_words(size_bytes) if size_bytes else ""


def _difference(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"
