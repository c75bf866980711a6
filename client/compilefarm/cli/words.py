"""Quantities for people."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from compilefarm.core.enum_words import word_of
from compilefarm.core.printable import printable

_UNITS = ("B", "kB", "MB", "GB", "TB")
# Of a key: the digest of its graph, and enough of the rest to tell variants of the graph apart.
_BEGINNING_OF_KEY = 25
# Of output that no terminal limits, such as a file or a pipe.
_PLAIN_WIDTH = 160


def console(*, markup: bool = False) -> Console:
    """Returns the console on which commands print. Control characters of a farm or a file do not reach the terminal.

    Args:
        markup: whether brackets in what is printed are rich's markup, also in what others said: that would be links, or
            an error where a bracket closes nothing.
    """
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    to = Console(highlight=False, markup=markup, emoji=False, width=width)
    to.push_render_hook(_Escaping())
    return to


class _Escaping(RenderHook):
    """Escapes control characters in all that is printed, before styles are added."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._renderable, options):
            yield Segment(text if control else printable(text), style, control)


def enum_words(enumeration: Any, number: int, *, prefix: str) -> str:
    """A value of an enumeration for people: "cache hit", or "phase 99" where only a newer farm knows its name."""
    return word_of(enumeration, number, prefix=prefix).replace("_", " ")


def key_words(key: str) -> str:
    """The beginning of a key, which fits into a table; every command takes it in place of the key."""
    return key[:_BEGINNING_OF_KEY]


def moment_words(seconds: float, *, timespec: str = "seconds") -> str:
    """A moment in UTC: "2026-11-25 07:15:00".

    Args:
        seconds: since 1970. What a farm or a file says may be beyond the calendar, or no number.
        timespec: the smallest unit, as `datetime.isoformat` calls it.
    """
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return f"no date ({seconds} s since 1970)"
    return moment.isoformat(sep=" ", timespec=timespec)


def size_words(size_bytes: float) -> str:
    """A size: "812 B", "1.3 kB", "48.0 MB"."""
    power = next((power for power in range(len(_UNITS) - 1) if size_bytes < 1000 ** (power + 1)), len(_UNITS) - 1)
    return f"{size_bytes:.0f} B" if power == 0 else f"{size_bytes / 1000**power:.1f} {_UNITS[power]}"


def seconds_words(seconds: float) -> str:
    """A duration: "85 µs", "0.5 ms", "31 ms", "1.24 s", "73 s"."""
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else f"{seconds:.0f} s"
