"""The progress of prewarming: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from compilefarm.cli.plans import minutes_words
from compilefarm.client.plans import Plan, estimate_seconds
from compilefarm.client.prewarming import OnServed, Report
from compilefarm.core.printable import printable


@contextmanager
def showing_progress(plan: Plan) -> Iterator[OnServed]:
    """Yields a callback that shows progress on standard error."""
    if sys.stderr.isatty():
        with _bar() as bar:
            task = bar.add_task("", total=len(plan.graphs))

            def update(report: Report) -> None:
                bar.update(task, completed=len(report.served), description=progress_words(report))

            yield update
    else:
        yield lambda report: print(printable(progress_words(report)), file=sys.stderr, flush=True)


def progress_words(report: Report) -> str:
    """The progress in words: "3 served, 0 failed, 2 left, about 1.5 min"."""
    failed, left = len(report.failed), report.unfinished
    done = f"{len(report.served) - failed} served, {failed} failed, {left} left"
    return f"{done}, about {minutes_words(_seconds_left(report))}" if left else done


def _seconds_left(report: Report) -> float:
    known = {id(each.graph) for each in report.served}
    left = [graph for graph in report.plan.graphs if id(graph) not in known]
    done = [each.graph for each in report.served if each.outcome == "compiled"]
    # The plan may know nothing of such compiles; how long the first ones took tells more.
    expected = estimate_seconds(done, workers=report.plan.workers)
    pace = report.seconds / expected if expected else 1.0
    return pace * estimate_seconds(left, workers=report.plan.workers)


def _bar() -> Progress:
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
