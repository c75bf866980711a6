"""What a lookup in torch's remote caches takes, in a farm and in Redis: by torch's own client code, in one
process, and then in some that ask at once for the same. Both servers run at the same time, and are asked in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compilefarm.benchmarks.farms import serving, wait_until_quiet
from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.benchmarks.redis_server import REDIS_URL, serving_redis, why_no_redis
from compilefarm.client.config import ADDRESS, TORCH_CACHES
from compilefarm.core.errors import FarmError

_ROUNDS = 3
_FARM = ("--cache-size-limit", "1GB")
_LONGEST_SECONDS = 600.0
# A graph of a small model, as torch keeps it.
_ENTRY_BYTES = 64 * 1024


class LookupsFailed(FarmError):
    """A process that looks entries up has failed."""


def grow_lookups(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures lookups of so many processes at once.

    Raises:
        LookupsFailed: one of them fails.
    """
    if reason := why_no_redis():
        on_point(Point(axis="lookups", size=sizes[0], figures={}, reason=reason))
        return
    with _servers(folder) as servers:
        for size in sizes:
            rounds = [
                {name: _ask(name, size, variables) for name, variables in servers.items()} for _ in range(_ROUNDS)
            ]
            on_point(_point(size, rounds))


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """The variables by which torch asks each."""
    place = folder / "lookups"
    place.mkdir()
    with serving_redis(place / "redis") as url, serving(place, device="cpu", options=_FARM) as address:
        # It takes processors from both.
        wait_until_quiet(address)
        yield {"Redis": {REDIS_URL: url}, "farm": {ADDRESS: address, TORCH_CACHES: "yes"}}


def _ask(name: str, size: int, variables: Mapping[str, str]) -> dict[str, list[float]]:
    """The seconds of each lookup, by which processes asked, and what one takes of processors (see lookup_processes)."""
    # The one that is not asked takes nothing.
    servers = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    program = "compilefarm.benchmarks.lookup_processes"
    command = [sys.executable, "-m", program, str(size), str(_ENTRY_BYTES), ",".join(servers)]
    asked = subprocess.run(
        command,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=_LONGEST_SECONDS,
    )
    if asked.returncode != 0:
        raise LookupsFailed(f"of {size} processes that look entries up in {name} one failed, as is said above")
    seconds: dict[str, list[float]] = json.loads(asked.stdout)
    return seconds


def _point(size: int, rounds: Sequence[Mapping[str, Mapping[str, Sequence[float]]]]) -> Point:
    """What a lookup takes on the average, in the median round: some bring entries of later ones and take longer."""
    others, first, without_work, process, server = (
        {name: _median_of_means(rounds, name, what) for name in rounds[0]}
        for what in ("others", "first", "without work", "processor of the process", "processor of the server")
    )
    slowest = {name: statistics.median(max(each[name]["others"]) for each in rounds) for name in rounds[0]}
    figures = {
        **{f"{name} seconds": seconds for name, seconds in others.items()},
        **{f"{name} slowest seconds": seconds for name, seconds in slowest.items()},
        **{f"{name} first reader seconds": seconds for name, seconds in first.items()},
        **{f"{name} without work seconds": seconds for name, seconds in without_work.items()},
        **{f"{name} pod processor seconds": seconds for name, seconds in process.items()},
        **{f"{name} server processor seconds": seconds for name, seconds in server.items()},
        "farm as a share of Redis": others["farm"] / others["Redis"],
        "farm as a share of Redis for the first reader": first["farm"] / first["Redis"],
        "farm as a share of Redis without work": without_work["farm"] / without_work["Redis"],
    }
    return Point(axis="lookups", size=size, figures=figures)


def _median_of_means(rounds: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], name: str, what: str) -> float:
    return statistics.median(statistics.fmean(each[name][what]) for each in rounds)
