"""How a farm's throughput grows with its slots: so many different graphs at once, in farms with empty stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compilefarm.benchmarks.farms import serving, wait_until_quiet
from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.benchmarks.requests import trace_requests
from compilefarm.cli.farm import connection_to
from compilefarm.client.planner import Planner
from compilefarm.client.prewarming import Prewarming

_GRAPHS = 4


def grow_slots(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures the compiles of the same graphs for each number of slots."""
    recording = trace_requests(_GRAPHS)
    first: float | None = None
    for size in sizes:
        with (
            serving(folder / f"slots-{size}", device="cpu", options=("--slots", str(size))) as address,
            connection_to(address) as connected,
        ):
            wait_until_quiet(address)
            plan = Planner(connected, environment=None, mode=None).plan(recording)
            report = Prewarming(connected, tenant="", parallel=_GRAPHS).run(plan)
        first = first or report.seconds
        figures = {
            "graphs": float(_GRAPHS),
            "seconds": report.seconds,
            "share of the fewest slots": report.seconds / first,
        }
        reason = "; ".join(sorted({each.problem for each in report.failed}))
        on_point(Point(axis="slots", size=size, figures={} if reason else figures, reason=reason))
