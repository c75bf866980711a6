"""compilefarm.v1.CompileService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from compilefarm.service.broker import Accepted, Answering, Event, Finished, Progress
from compilefarm.service.callers import current_caller
from compilefarm.service.grpc_types import Context
from compilefarm.service.priorities import Priority
from compilefarm.service.reports import Reports
from compilefarm.service.roles import Role
from compilefarm.service.self_checks import SelfChecks
from compilefarm.service.wire_priorities import read_priority
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceServicer
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.v1.manifest_pb2 import KeyPart, Manifest


class CompileService(CompileServiceServicer):
    """Adapts a broker, and what clients tell, to the wire."""

    def __init__(self, broker: Answering, *, reports: Reports, self_checks: SelfChecks) -> None:
        self._broker = broker
        self._reports = reports
        self._self_checks = self_checks

    async def Lookup(self, request: wire.LookupRequest, _context: Context) -> wire.LookupResponse:
        return wire.LookupResponse(manifest=await self._broker.lookup(request.job, caller=current_caller()))

    async def Plan(self, request: wire.PlanRequest, _context: Context) -> wire.PlanResponse:
        plan = await self._broker.plan(request.job, caller=current_caller())
        return wire.PlanResponse(
            key=plan.key.text,
            prospect=plan.prospect,
            problem=plan.problem,
            compile_seconds=plan.compile_seconds,
        )

    async def Compile(self, request: wire.CompileRequest, _context: Context) -> AsyncIterator[wire.CompileResponse]:
        priority, caller = read_priority(request.priority), current_caller()
        if priority is Priority.PREWARM:
            caller.require(Role.PREWARM, what="priority prewarm")
        async with aclosing(self._broker.compile(request.job, caller=caller, priority=priority)) as events:
            async for event in events:
                yield _response(event)

    async def Report(self, request: wire.ReportRequest, _context: Context) -> wire.ReportResponse:
        self._reports.add(request.graphs)
        await self._self_checks.note(request.self_checks, caller=current_caller())
        return wire.ReportResponse()


def _response(event: Event) -> wire.CompileResponse:
    match event:
        case Accepted(key=key):
            parts = [KeyPart(name=part.name, digest=part.digest) for part in key.parts]
            return wire.CompileResponse(accepted=wire.Accepted(key=key.text, key_parts=parts))
        case Progress():
            return wire.CompileResponse(
                progress=wire.Progress(
                    phase=event.phase,
                    elapsed_seconds=event.elapsed_seconds,
                    jobs_ahead=event.jobs_ahead,
                    worker=event.worker,
                    estimated_wait_seconds=event.estimated_wait_seconds,
                    estimated_compile_seconds=event.estimated_compile_seconds,
                )
            )
        case Finished(outcome=outcome, result=Manifest() as manifest):
            return wire.CompileResponse(finished=wire.Finished(outcome=outcome, manifest=manifest))
        case Finished(outcome=outcome, result=CompileFailure() as failure):
            return wire.CompileResponse(finished=wire.Finished(outcome=outcome, failure=failure))
    raise AssertionError(f"no such event: {event}")
