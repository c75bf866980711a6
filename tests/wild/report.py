"""Prints what became of the programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .run import Row

_COLUMNS = ("program", "graphs", "served", "right", "cold", "warm", "refused")
_LONGEST = 100


def share_served(rows: Sequence[Row]) -> float:
    """Share of the graphs that ran as programs of the farm."""
    return sum(row.served for row in rows) / max(sum(row.graphs for row in rows), 1)


def print_report(console: Console, rows: Sequence[Row]) -> None:
    """A table for each library, what is wrong, and the totals."""
    for library in dict.fromkeys(row.library for row in rows):
        own = [row for row in rows if row.library == library]
        console.print(_table(library, own))
        console.print(_totals(library, own), highlight=False)
    for row in rows:
        for line in _faults(row):
            console.print(f"{row.library}, {row.name}: {line}", markup=False, highlight=False)
    console.print(_totals("all", rows), highlight=False)


def write_markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown, as RESULTS.md holds it."""
    lines = ["| library | " + " | ".join(_COLUMNS) + " |", "|---|---|--:|--:|---|--:|--:|---|"]
    for row in rows:
        cells = [row.library, *(cell.replace("|", "/") for cell in _cells(row))]
        lines.append("| " + " | ".join(cells) + " |")
    totals = [_totals(library, [row for row in rows if row.library == library]) for library in _libraries(rows)]
    return "\n".join([*lines, "", *(f"- {total}" for total in [*totals, _totals("all", rows)]), ""])


def has_fault(row: Row) -> bool:
    """Whether something is wrong with a program, beside graphs that the farm refuses."""
    return bool(row.wrong or row.error or row.compiled_again)


def _libraries(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.library for row in rows))


def _table(library: str, rows: Sequence[Row]) -> Table:
    table = Table(title=library)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("program", "right", "refused") else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    if row.skipped:
        return row.name, "", "", "", "", "", f"skipped: {_short(row.skipped)}"
    return (
        row.name,
        str(row.graphs),
        str(row.served),
        "yes" if row.is_right else "NO",
        f"{row.cold_seconds:.1f}",
        # Through the codec there is no warm run.
        f"{row.warm_seconds:.1f}" if row.warm_seconds else "",
        f"none captured: {_short(row.uncaptured)}"
        if row.uncaptured
        else "; ".join(dict.fromkeys(_short(refusal) for refusal in row.refused)),
    )


def _faults(row: Row) -> Iterator[str]:
    yield from row.wrong
    if row.error:
        yield row.error
    if row.compiled_again:
        yield f"{row.compiled_again} graphs were compiled again in the warm run"


def _totals(name: str, rows: Sequence[Row]) -> str:
    ran = [row for row in rows if not row.skipped]
    graphs, served = sum(row.graphs for row in ran), sum(row.served for row in ran)
    return (
        f"{name}: {len(ran)} programs ({len(rows) - len(ran)} skipped), {graphs} graphs, {served} served"
        f" ({share_served(ran):.1%}); {sum(row.is_right for row in ran)} programs right;"
        f" {sum(row.cold_seconds for row in ran):.0f} s cold, {sum(row.warm_seconds for row in ran):.0f} s warm"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
