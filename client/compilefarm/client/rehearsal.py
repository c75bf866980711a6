"""Prewarming of what a function does.

Programs may have guards on sizes. In a pod Dynamo checks them before each call, and traces again for sizes beyond them;
so the function is run once more when they are known, until it asks for nothing that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from compilefarm.client.plans import Plan
from compilefarm.client.prewarming import Report
from compilefarm.client.recording_backend import Backend, record
from compilefarm.client.runtime import Runtime
from compilefarm.core.expressions import holds
from compilefarm.core.keys import key_of
from compilefarm.core.recordings import RecordedRequest, Recording
from compilefarm.core.requests import Request
from compilefarm.v1.graph_pb2 import Expression

Prewarm = Callable[[Recording], Report]
# The guards of what a farm has stored for a request.
FindGuards = Callable[[Request], Sequence[Expression]]
# Each run but the first finds sizes that no program is for yet; few programs have more than two.
_MOST_RUNS = 8


def prewarm_function(
    function: Callable[[Backend], object], *, runtime: Runtime, prewarm: Prewarm, find_guards: FindGuards
) -> Report:
    """Has a farm compile what a function asks for, and returns what became of it.

    Args:
        function: compiles and calls models with the backend that it is given.
        runtime: torch.
        prewarm: has a recording compiled.
        find_guards: asks the farm.

    Raises:
        As `prewarm` and `find_guards`.
    """
    variants = _Variants()
    recording = record(function, runtime=runtime)
    report = prewarm(recording)
    for _ in range(_MOST_RUNS):
        variants.learn(recording, report, find_guards=find_guards)
        if not variants.have_guards:
            break
        recording = variants.without(record(function, runtime=runtime, guards_of=variants.find))
        if not recording.requests:
            break
        report = _together(report, prewarm(recording))
    return report


@dataclass(slots=True)
class _Variants:
    """The guards of the artifacts of each key; of one that could not be made there are none."""

    _guards: dict[str, list[Sequence[Expression]]] = field(default_factory=dict)

    @property
    def have_guards(self) -> bool:
        return any(map(any, self._guards.values()))

    def learn(self, recording: Recording, report: Report, *, find_guards: FindGuards) -> None:
        keys = {recorded.file: _key_of(recorded.request) for recorded in recording.requests}
        for served in report.served:
            if served.graph.file in keys:
                is_limited = served.outcome != "failed" and bool(served.graph.request.job.symbols)
                guards = find_guards(served.graph.request) if is_limited else ()
                self._guards.setdefault(keys[served.graph.file], []).append(guards)

    def find(self, request: Request) -> Sequence[Expression]:
        """The guards of the artifact that a pod would load; empty if it has none, or nothing is known of one."""
        return self._find(request) or ()

    def without(self, recording: Recording) -> Recording:
        """The requests of a recording that none of the artifacts is for."""

        def is_new(recorded: RecordedRequest) -> bool:
            return self._find(recorded.request) is None

        return replace(recording, requests=list(filter(is_new, recording.requests)))

    def _find(self, request: Request) -> Sequence[Expression] | None:
        known = self._guards.get(_key_of(request), ())
        return next((guards for guards in known if holds(guards, request.job.hints)), None)


def _key_of(request: Request) -> str:
    return key_of(request.job).text


def _together(first: Report, second: Report) -> Report:
    plan = Plan(
        graphs=[*first.plan.graphs, *second.plan.graphs], bypasses=first.plan.bypasses, workers=second.plan.workers
    )
    return Report(plan=plan, served=(*first.served, *second.served), seconds=first.seconds + second.seconds)
