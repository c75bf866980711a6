"""Asks a farm what prewarming a recording would do. Nothing is compiled for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from compilefarm.client.connection import Connection
from compilefarm.client.package_plans import PackagePlanner, left_out
from compilefarm.client.plans import Plan, PlannedGraph, Standing
from compilefarm.core.artifacts import check_guards
from compilefarm.core.errors import InvalidRequest, NotStored
from compilefarm.core.keys import FORMATS, key_of
from compilefarm.core.metadata import say_key_formats
from compilefarm.core.recordings import RecordedRequest, Recording
from compilefarm.core.requests import Request
from compilefarm.core.retargeting import CannotRetarget, Target, find_target, retarget
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.admin_service_pb2 import DescribeEnvironmentRequest, ListWorkersRequest, Worker
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.blob_service_pb2 import FindMissingRequest
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.manifest_pb2 import Manifest

# An operator or a pipeline waits; a pod would not.
_SECONDS_PER_QUESTION = 30.0
_STANDINGS: Mapping[int, Standing] = {
    wire.PROSPECT_HIT: "hit",
    wire.PROSPECT_MISS: "miss",
    wire.PROSPECT_UNDER_WAY: "under way",
}
# Why a recorded request cannot be served, beside what the farm refuses and what compilefarm.core.retargeting names.
REASONS: Mapping[str, str] = {
    "missing_tensors": "The recording lacks tensors that the graph holds, and the farm does not have them either.",
    "quarantined": "The farm does not try the key: its compiles ended their processes, or its artifact failed a check.",
    "unknown": "The farm gives a reason that this release does not know.",
}
_REASONS = {wire.PROSPECT_NO_WORKER: "no_worker", wire.PROSPECT_QUARANTINED: "quarantined"}


class Planner:
    """Asks a farm what it would do about requests.

    Args:
        connection: to the farm.
        environment: name of the environment of the farm that requests are retargeted to; None: they stay as recorded.
        mode: mode= of torch.compile that they are retargeted to; None: they stay as recorded.
        timeout_seconds: limit of one call.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        environment: str | None = None,
        mode: str | None = None,
        timeout_seconds: float = _SECONDS_PER_QUESTION,
    ) -> None:
        self._connection = connection
        self._environment = environment
        self._mode = mode
        self._timeout_seconds = timeout_seconds

    def plan(self, recording: Recording) -> Plan:
        """Returns what the farm would do about a recording.

        Raises:
            NoMatchingWorker: it has no such environment.
            FarmError: it cannot be asked.
        """
        stubs = self._connection.stubs()
        admin = AdminServiceStub(stubs.channel)
        with self._connection.calls():
            workers = admin.ListWorkers(ListWorkersRequest(), timeout=self._timeout_seconds).workers
            targets = self._targets(admin, workers)
            graphs = [self._plan(recorded, targets=targets) for recorded in recording.requests]
        plan = Plan(graphs=graphs, bypasses=recording.bypasses, workers=workers)
        if self._environment is not None or self._mode is not None:
            return replace(plan, packages=left_out(recording.packages))
        packages = PackagePlanner(self._connection, timeout_seconds=self._timeout_seconds).plan(recording.packages)
        return replace(plan, packages=packages, unpublished=recording.unpublished)

    def find_guards(self, request: Request) -> Sequence[Expression]:
        """Returns the guards of what the farm has stored for a request; none if it has removed it.

        Raises:
            FarmError: it cannot be asked.
        """
        try:
            found = self._look_up(request)
        except NotStored:
            return ()
        check_guards(found.guards, request.job)
        return found.guards

    def _look_up(self, request: Request) -> Manifest:
        stubs = self._connection.stubs()
        with self._connection.calls():
            return stubs.compiles.Lookup(
                wire.LookupRequest(job=request.job),
                timeout=self._timeout_seconds,
                metadata=(say_key_formats(FORMATS),),
            ).manifest

    def _targets(self, admin: AdminServiceStub, workers: Iterable[Worker]) -> list[Target]:
        """Returns the environments that requests may have to be retargeted to."""
        if self._environment is not None:
            names = [self._environment]
        elif self._mode is not None:
            ready = (worker for worker in workers if worker.HasField("environment"))
            names = list(dict.fromkeys(worker.environment_name for worker in ready))
        else:
            names = []
        return [self._describe(admin, name) for name in names]

    def _describe(self, admin: AdminServiceStub, name: str) -> Target:
        request = DescribeEnvironmentRequest(name=name)
        described = admin.DescribeEnvironment(request, timeout=self._timeout_seconds)
        return Target(name=name, environment=described.environment, vocabulary=described.vocabulary)

    def _plan(self, recorded: RecordedRequest, *, targets: Sequence[Target]) -> PlannedGraph:
        graph = PlannedGraph(
            file=recorded.file,
            name=recorded.name,
            nodes=len(recorded.request.job.graph.nodes),
            count=recorded.count,
            request=recorded.request,
            standing="cannot",
        )
        try:
            request = self._retargeted(recorded.request, targets=targets)
            graph = replace(graph, request=request, key=key_of(request.job).text)
            return self._ask(graph)
        except (CannotRetarget, InvalidRequest) as error:
            return replace(graph, reason=error.reason, problem=str(error))

    def _retargeted(self, request: Request, *, targets: Sequence[Target]) -> Request:
        if self._environment is None and self._mode is None:
            return request
        target = targets[0] if self._environment is not None else find_target(request.job.environment, targets)
        return replace(request, job=retarget(request, target=target, mode=self._mode))

    def _ask(self, graph: PlannedGraph) -> PlannedGraph:
        stubs = self._connection.stubs()
        with self._connection.calls():
            answer = stubs.compiles.Plan(
                wire.PlanRequest(job=graph.request.job),
                timeout=self._timeout_seconds,
                metadata=(say_key_formats(FORMATS),),
            )
        graph = replace(graph, key=answer.key or graph.key)
        if answer.prospect in _STANDINGS:
            standing = _STANDINGS[answer.prospect]
            if standing == "miss" and (missing := self._find_missing(graph.request)):
                return replace(
                    graph,
                    reason="missing_tensors",
                    problem=f"the farm lacks {len(missing)} of the tensors that the graph holds, and so does the"
                    " recording: record them, too (COMPILEFARM_RECORD_TENSORS=yes)",
                )
            return replace(graph, standing=standing, problem=answer.problem, compile_seconds=answer.compile_seconds)
        reason = _REASONS.get(answer.prospect, "unknown")
        return replace(graph, reason=reason, problem=answer.problem or "the farm says that it cannot, and not why")

    def _find_missing(self, request: Request) -> Sequence[str]:
        digests = request.missing_digests()
        if not digests:
            return ()
        stubs = self._connection.stubs()
        with self._connection.calls():
            return stubs.blobs.FindMissing(FindMissingRequest(digests=digests), timeout=self._timeout_seconds).digests
