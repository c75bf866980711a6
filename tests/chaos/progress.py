"""Progress under chaos."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic

from .disk import Disk, small_disk
from .farm import ROOT, DidNotStart, KilledFarm, with_root
from .pods import Got, run_pod
from .programs import SIZE_BYTES
from .proxy import Fault, FaultProxy
from .verdicts import Scale, Verdict, problems_of

_SEED = 7
_FLEETS, _THREADS = 2, 6
_SECONDS_BETWEEN_WORKERS = 5.0
_SECONDS_OF_A_FAULT = 3.0
# Until the last pods are done; each of their graphs has a budget.
_PATIENCE_SECONDS = 300.0
_COMPILE_SECONDS = 0.2


_FAULTS = (Fault.NONE, Fault.NONE, Fault.DELAY, Fault.RESET)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    seconds: float
    timeout_seconds: float
    faults: Sequence[Fault]
    seconds_between_gateways: float
    disk_full_from: float
    disk_full_seconds: float


# Without black holes, since it takes half a minute to find out about one.
_SHORT = _Pace(
    seconds=9.0,
    timeout_seconds=20.0,
    faults=_FAULTS,
    seconds_between_gateways=5.0,
    disk_full_from=6.5,
    disk_full_seconds=2.0,
)
_LONG = _Pace(
    seconds=600.0,
    timeout_seconds=60.0,
    faults=(*_FAULTS, Fault.BLACK_HOLE),
    seconds_between_gateways=60.0,
    disk_full_from=210.0,
    disk_full_seconds=10.0,
)


class _Chaos:
    """Does harm, at its times.

    Attributes:
        done: how much of what.
    """

    def __init__(self, farm: KilledFarm, *, pace: _Pace, proxy: FaultProxy, disk: Disk) -> None:
        self.done: Counter[str] = Counter()
        self._farm = farm
        self._pace = pace
        self._proxy = proxy
        self._disk = disk
        self._is_full = False
        self._random = Random(_SEED)

    def run(self) -> None:
        """Goes on for as long as the pace says; leaves everything whole."""
        pace = self._pace
        started = monotonic()
        # (when, order, what, how long until the next time)
        agenda: list[tuple[float, int, Callable[[], None], float]] = [
            (_SECONDS_BETWEEN_WORKERS, 0, self._kill_a_worker, _SECONDS_BETWEEN_WORKERS),
            (pace.seconds_between_gateways, 1, self._kill_the_gateway, pace.seconds_between_gateways),
            (_SECONDS_OF_A_FAULT, 2, self._change_the_network, _SECONDS_OF_A_FAULT),
            (pace.disk_full_from, 3, self._fill_the_disk, pace.seconds),
            (pace.disk_full_from + pace.disk_full_seconds, 4, self._empty_the_disk, pace.seconds),
        ]
        heapq.heapify(agenda)
        never = threading.Event()
        while agenda[0][0] < pace.seconds:
            when, order, harm, period = heapq.heappop(agenda)
            never.wait(max(0.0, started + when - monotonic()))
            harm()
            heapq.heappush(agenda, (when + period, order, harm, period))
        self._proxy.set_fault(Fault.NONE)

    def _kill_a_worker(self) -> None:
        children = self._farm.children()
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(children), signal.SIGKILL)
                self.done["workers killed"] += 1

    def _kill_the_gateway(self) -> None:
        self._farm.kill()
        self.done["gateways killed"] += 1
        while True:
            try:
                self._farm.start()
                return
            except DidNotStart:
                # Its disk is full: whoever runs it starts it again.
                assert self._is_full
                self.done["starts in vain"] += 1
                self._empty_the_disk()

    def _change_the_network(self) -> None:
        fault = self._random.choice(self._pace.faults)
        self._proxy.set_fault(fault)
        if fault is not Fault.NONE:
            self.done[fault.value] += 1

    def _fill_the_disk(self) -> None:
        self._disk.fill(self._farm.process.pid)
        self._is_full = True
        self.done["full disks"] += 1

    def _empty_the_disk(self) -> None:
        if self._is_full:
            self._disk.empty(self._farm.process.pid)
            self._is_full = False


def run(scale: Scale) -> Verdict:
    """Pods ask for new graphs and old ones while workers, gateway, network and disk fail."""
    pace = _SHORT if scale.short else _LONG
    child = (f"--size={SIZE_BYTES}", f"--seconds={_COMPILE_SECONDS}")
    with small_disk(scale.folder / "disk") as disk:
        farm = KilledFarm(disk.folder, child=child, log=scale.folder / "gateway.log", cluster=scale.cluster)
        farm.start()
        try:
            proxy = FaultProxy(farm.address)
            chaos = _Chaos(farm, pace=pace, proxy=proxy, disk=disk)
            with proxy.run(), contextlib.ExitStack() as stack:
                fleets = [stack.enter_context(_fleet(proxy.address, pace, number)) for number in range(_FLEETS)]
                chaos.run()
                got = [each for fleet in fleets for each in _results(fleet)]
            delivered = sorted({each.name for each in got if each.is_from_farm})
            kept = run_pod(farm.address, delivered)
        finally:
            farm.kill()
    return _verdict(got, kept, chaos=chaos, pace=pace, disk=disk)


def _verdict(got: list[Got], kept: list[Got], *, chaos: _Chaos, pace: _Pace, disk: Disk) -> Verdict:
    outcomes = Counter(each.outcome if each.is_from_farm else f"local ({each.reason})" for each in got)
    seconds = sorted(each.seconds for each in got)
    p50, p99 = statistics.quantiles(seconds, n=100)[49], statistics.quantiles(seconds, n=100)[98]
    return Verdict(
        done=f"{pace.seconds:.0f} s of pods in {_FLEETS * _THREADS} threads, through a proxy: "
        + ", ".join(f"{count} {harm}" for harm, count in sorted(chaos.done.items()))
        + f" ({pace.disk_full_seconds:.0f} s: {disk.kind})",
        seen=f"{len(got)} graphs, p50 {p50:.3f} s, p99 {p99:.1f} s, longest {seconds[-1]:.1f} s: "
        + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        + f"; {len(kept)} delivered graphs found afterwards",
        problems=problems_of(
            every_program_is_right=all(each.right for each in got),
            some_were_delivered=bool(kept),
            what_was_delivered_is_still_stored=all(each.outcome == "hit" and each.right for each in kept),
            workers_and_gateways_were_killed=min(chaos.done["workers killed"], chaos.done["gateways killed"]) > 0,
        ),
    )


@contextlib.contextmanager
def _fleet(address: str, pace: _Pace, number: int) -> Iterator[subprocess.Popen[str]]:
    arguments = (address, str(pace.seconds), str(pace.timeout_seconds), str(_THREADS), str(1000 * number))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.fleet", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=with_root(os.environ),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _results(fleet: subprocess.Popen[str]) -> list[Got]:
    """What its graphs were given.

    Raises:
        subprocess.TimeoutExpired: a graph has neither been given anything nor been compiled locally.
    """
    said, _ = fleet.communicate(timeout=_PATIENCE_SECONDS)
    assert fleet.returncode == 0, "pods must not break, whatever the farm does"
    return [Got(**json.loads(line)) for line in said.splitlines()]
