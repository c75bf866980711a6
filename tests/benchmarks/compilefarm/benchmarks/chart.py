"""Reports as a picture: one bar for each way, its phases beside each other, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from compilefarm.benchmarks.models import MODELS
from compilefarm.benchmarks.report import Measured, Report
from compilefarm.benchmarks.results import PHASES, phase_words
from compilefarm.benchmarks.tables import phases_of
from compilefarm.cli.words import seconds_words

_WIDTH = 1080
_MARGIN = 40
_LABELS = 150
# For the figure behind the longest bar.
_FIGURES = 150
_BAR, _STEP = 20, 30
_PANEL_HEAD, _PANEL_FOOT = 42, 44
_HEAD = 110
_FONT = "font-family='Helvetica, Arial, sans-serif'"
_DARK, _GREY, _LIGHT = "#1f2933", "#616e7c", "#e4e7eb"
# Told apart by people who do not see red and green, too (Okabe and Ito).
_COLOURS = {
    "dynamo": "#56b4e9",
    "encode": "#0072b2",
    "wait": "#e69f00",
    "fetch": "#f0e442",
    "compile": "#d55e00",
    "load": "#cc79a7",
    "local": "#8c564b",
    "first_call": "#009e73",
}


def draw_chart(report: Report) -> str:
    """The report as SVG, one panel for each model; each has its own scale, in seconds."""
    panels, top = [], float(_HEAD)
    for model in report.models():
        ways = [way for way in report.of_model(model) if way.results]
        if ways:
            panels += list(_panel(model, ways, top=top))
            top += _PANEL_HEAD + _STEP * len(ways) + _PANEL_FOOT
    height = top + _MARGIN / 2
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height:.0f}' width='{_WIDTH}'>",
            f"<rect width='{_WIDTH}' height='{height:.0f}' fill='white'/>",
            *_head(report),
            *panels,
            "</svg>\n",
        ]
    )


def _head(report: Report) -> Iterator[str]:
    yield _text(_MARGIN, 38, "Seconds from a model to its first result, in a fresh process", size=22, weight="bold")
    machine = report.machine
    facts = [machine.get("gpu", ""), machine.get("processor", ""), f"{machine.get('cores')} cores"]
    versions = [f"torch {machine.get('torch')}", f"mode {report.mode or 'default'}", machine.get("date", "")]
    # Fewer than were asked for, if the benchmark was ended early.
    rounds = max((len(way.results) for way in report.measured), default=0)
    line = ", ".join(filter(None, (*facts, *versions)))
    yield _text(_MARGIN, 60, f"{line}; median of {rounds}, whiskers: all rounds", size=13, colour=_GREY)
    x = float(_MARGIN)
    for phase in phases_of(report.measured):
        words = phase_words(phase)
        yield f"<rect x='{x:.1f}' y='76' width='14' height='14' rx='2' fill='{_COLOURS[phase]}'/>"
        yield _text(x + 20, 88, words, size=13)
        x += 20 + 6.6 * len(words) + 24


def _panel(model: str, ways: Sequence[Measured], *, top: float) -> Iterator[str]:
    title = f"{model}: {MODELS[model]}" if model in MODELS else model
    yield _text(_MARGIN, top + 24, title, size=16, weight="bold")
    longest = max(way.spread()[1] for way in ways)
    left, scale = _MARGIN + _LABELS, (_WIDTH - 2 * _MARGIN - _LABELS - _FIGURES) / longest
    bottom = top + _PANEL_HEAD + _STEP * len(ways)
    for tick in _ticks(longest):
        x = left + tick * scale
        yield f"<line x1='{x:.1f}' y1='{top + _PANEL_HEAD - 6:.1f}' x2='{x:.1f}' y2='{bottom}' stroke='{_LIGHT}'/>"
        yield _text(x, bottom + 16, f"{tick:g} s", size=12, colour=_GREY, anchor="middle")
    for number, way in enumerate(ways):
        yield from _bar(way, left=left, top=top + _PANEL_HEAD + _STEP * number, scale=scale)


def _bar(way: Measured, *, left: float, top: float, scale: float) -> Iterator[str]:
    typical = way.typical()
    assert typical is not None
    weight = "bold" if way.way.startswith("farm") else "normal"
    yield _text(left - 10, top + 15, way.way, size=14, anchor="end", weight=weight)
    x = left
    for phase in PHASES:
        width = typical.seconds.get(phase, 0.0) * scale
        if width > 0:
            name = escape(f"{way.way}, {phase_words(phase)}: {seconds_words(typical.seconds[phase])}")
            yield (
                f"<rect x='{x:.2f}' y='{top}' width='{width:.2f}' height='{_BAR}' fill='{_COLOURS[phase]}'>"
                f"<title>{name}</title></rect>"
            )
            x += width
    low, high = (left + seconds * scale for seconds in way.spread())
    middle = top + _BAR / 2
    if len(way.results) > 1:
        yield (
            f"<path d='M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8' "
            f"stroke='{_DARK}' stroke-width='1.2' fill='none'/>"
        )
    yield _text(max(x, high) + 8, top + 15, seconds_words(typical.total_seconds), size=14, weight=weight)


def _ticks(longest: float) -> list[float]:
    """From 0 on, at most eight round numbers."""
    power = 0.001
    while True:
        for factor in (1, 2, 5):
            step = factor * power
            if longest / step <= 8:
                return [step * number for number in range(int(longest / step) + 1)]
        power *= 10


def _text(
    x: float, y: float, words: str, *, size: int, weight: str = "normal", colour: str = _DARK, anchor: str = "start"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(words)}</text>"
    )
