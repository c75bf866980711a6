"""Reports to the farm what became of graphs, for the metrics of its operator, for which nobody waits; and packages that
are wrong."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from compilefarm.client.connection import Connection
from compilefarm.client.findings import Finding, FindingOutcome
from compilefarm.client.records import GraphRecord, Outcome, Step
from compilefarm.core.errors import FarmError
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.package_service_pb2 import WithdrawRequest

_OUTCOMES: dict[Outcome, wire.GraphOutcome.ValueType] = {
    "hit": wire.GRAPH_OUTCOME_HIT,
    "compiled": wire.GRAPH_OUTCOME_COMPILED,
    "joined": wire.GRAPH_OUTCOME_JOINED,
    "bypass": wire.GRAPH_OUTCOME_BYPASS,
    "fallback": wire.GRAPH_OUTCOME_FALLBACK,
    "local": wire.GRAPH_OUTCOME_LOCAL,
    # Farms tell it from those by `uncompiled`.
    "eager": wire.GRAPH_OUTCOME_LOCAL,
}
_FINDINGS: dict[FindingOutcome, wire.SelfCheckOutcome.ValueType] = {
    "same": wire.SELF_CHECK_OUTCOME_SAME,
    "differs": wire.SELF_CHECK_OUTCOME_DIFFERS,
    "skipped": wire.SELF_CHECK_OUTCOME_SKIPPED,
}
_SPENT: tuple[Step, ...] = ("encode", "wait", "fetch", "load")
# What a farm takes in one report.
_MOST_KEPT = 1000
_MOST_CHECKS_KEPT = 100
_LONGEST_DETAIL = 300
_SECONDS_TO_SEND = 5.0

T = TypeVar("T")


@dataclass(slots=True)
class _ProcessState:
    kept: deque[wire.GraphReport] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    checks: deque[wire.SelfCheckReport] = field(default_factory=lambda: deque(maxlen=_MOST_CHECKS_KEPT))
    # A call that nobody refers to is cancelled.
    under_way: list[grpc.Future[wire.ReportResponse]] = field(default_factory=list)


class Reporter:
    """Reports graphs while there is a connection to the farm, and keeps them for later while there is none. What is on
    its way when the connection breaks or the process ends is lost; nothing is reported twice.

    Args:
        connection: to the farm.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By process id, as in Connection: a forked process does not tell what its parent has to tell.
        self._states: dict[int, _ProcessState] = {}

    def report(self, record: GraphRecord) -> None:
        """Reports what became of a graph. Never waits and never raises."""
        if record.outcome is None:
            return
        state = self._state()
        state.kept.append(_report_of(record, outcome=record.outcome))
        self._send(state)

    def report_self_check(self, key: str, finding: Finding) -> None:
        """Reports what a comparison with the uncompiled graph found. Never waits and never raises."""
        state = self._state()
        state.checks.append(
            wire.SelfCheckReport(key=key, outcome=_FINDINGS[finding.outcome], detail=finding.detail[:_LONGEST_DETAIL])
        )
        self._send(state)

    def _state(self) -> _ProcessState:
        return self._states.setdefault(os.getpid(), _ProcessState())

    def _send(self, state: _ProcessState) -> None:
        stubs = self._connection.find_stubs()
        if stubs is None:
            return
        request = wire.ReportRequest(graphs=_take_all(state.kept), self_checks=_take_all(state.checks))
        # Another thread may be closing the connection.
        with contextlib.suppress(grpc.RpcError, ValueError):
            call = stubs.compiles.Report.future(request, timeout=_SECONDS_TO_SEND)
            state.under_way = [call, *(other for other in state.under_way if not other.done())]


def withdraw_package(connection: Connection, key: str, *, digest: str, detail: str) -> str:
    """Tells a farm that a package is wrong; returns what comes of it, for people.

    Args:
        connection: to the farm.
        key: by which the package was found.
        digest: of its content.
        detail: what differs.
    """
    request = WithdrawRequest(key=key, digest=digest, detail=detail[:_LONGEST_DETAIL])
    try:
        stubs = connection.stubs(within_seconds=_SECONDS_TO_SEND)
        with connection.calls():
            answer = stubs.packages.Withdraw(request, timeout=_SECONDS_TO_SEND)
    except FarmError as error:
        connection.give_up(error)
        return f"[{error.reason}] {error}"
    return "the farm has withdrawn it" if answer.is_withdrawn else "the farm does nothing about it; its log says why"


def _take_all(kept: deque[T]) -> list[T]:
    taken = []
    # Other threads take from it as well.
    with contextlib.suppress(IndexError):
        while True:
            taken.append(kept.popleft())
    return taken


def _report_of(record: GraphRecord, *, outcome: Outcome) -> wire.GraphReport:
    return wire.GraphReport(
        outcome=_OUTCOMES[outcome],
        reason=record.reason,
        spent_seconds=sum(record.seconds.get(step, 0.0) for step in _SPENT),
        avoided_seconds=record.compile_seconds,
        local_seconds=record.seconds.get("local", 0.0),
        uncompiled=record.resort == "eager",
    )
