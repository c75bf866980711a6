"""Prints what became of the programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .run import Row

_LONGEST_DIFFERENCE = 60
_LONGEST_MESSAGE = 140


def share_on_the_wire(rows: Sequence[Row]) -> float:
    """Share of graphs that are sent."""
    outcomes = [graph.outcome for row in rows for graph in row.graphs]
    return outcomes.count("sent") / max(len(outcomes), 1)


def share_right(rows: Sequence[Row]) -> float:
    """Share of programs that ran to the end and gave what they should."""
    ran = [row for row in rows if row.lacking is None]
    return sum(not row.differences and not row.crashes for row in ran) / max(len(ran), 1)


def render(rows: Sequence[Row]) -> Table:
    """One line for each program."""
    table = Table(title=f"{len(rows)} programs")
    for name in ("program", "graphs", "sent", "bypassed", "compiled", "right", "like local", "seconds"):
        table.add_column(name, justify="left" if name in ("program", "bypassed", "right", "like local") else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def print_report(console: Console, rows: Sequence[Row]) -> None:
    """The table, the reasons, and the totals."""
    console.print(render(rows))
    bypasses = Counter(
        (graph.reason, graph.message) for row in rows for graph in row.graphs if graph.outcome == "bypass"
    )
    for (reason, message), count in bypasses.most_common():
        console.print(f"{count:4} bypassed, {reason}: {message[:_LONGEST_MESSAGE]}", markup=False, highlight=False)
    graphs = sum(len(row.graphs) for row in rows)
    crashes = sum(len(row.crashes) for row in rows)
    console.print(
        f"{graphs} graphs, {share_on_the_wire(rows):.1%} on the wire; {share_right(rows):.1%} of the programs right;"
        f" {crashes} crashes; {sum(row.seconds for row in rows):.0f} s",
        highlight=False,
    )


def _cells(row: Row) -> tuple[str, ...]:
    if row.lacking is not None:
        return row.name, "", "", "", "", escape(f"skipped: {row.lacking}"), "", ""
    bypassed = Counter(graph.reason for graph in row.graphs if graph.outcome == "bypass")
    return (
        row.name,
        str(len(row.graphs)),
        str(sum(graph.outcome == "sent" for graph in row.graphs)),
        " ".join(f"{reason} x{count}" if count > 1 else reason for reason, count in bypassed.items()),
        str(sum(graph.compiled for graph in row.graphs)) if _compiled(row) else "",
        _verdict(row),
        _beside_local(row),
        f"{row.seconds:.1f}",
    )


def _verdict(row: Row) -> str:
    if row.crashes:
        return f"[red]crash: {escape(_short([row.crashes[0].strip().splitlines()[-1]]))}[/]"
    return f"[red]{escape(_short(row.differences))}[/]" if row.differences else "yes"


def _compiled(row: Row) -> bool:
    return row.unlike_local is not None or row.local_failure is not None


def _beside_local(row: Row) -> str:
    if row.local_failure is not None:
        return escape(_short([f"local compile fails: {row.local_failure}"]))
    return "" if row.unlike_local is None else escape(_short(row.unlike_local))


def _short(differences: Sequence[str]) -> str:
    if not differences:
        return "yes"
    more = f" (+{len(differences) - 1})" if len(differences) > 1 else ""
    return differences[0][:_LONGEST_DIFFERENCE] + more
