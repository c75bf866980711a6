"""compilefarm.v1.CompileService on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from compilefarm.service.admission import Admission
from compilefarm.service.callers import current_caller
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.priorities import Priority
from compilefarm.service.prospects import Prospects
from compilefarm.service.reports import Reports
from compilefarm.service.requests import Answering, Event
from compilefarm.service.roles import Role
from compilefarm.service.self_checks import SelfChecks
from compilefarm.service.wire_priorities import read_priority
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceServicer

# Artifacts that are looked up at a time. A key may have any number of variants, and each of them takes a while.
_LOOKING = 128
_LOOKING_OF_ACCOUNT = 32
# As many as gRPC takes calls: a fleet that starts may have one name.
_WAITING_OF_ACCOUNT = 8192


class CompileService(CompileServiceServicer):
    """Adapts broker, prospects and reports to the wire."""

    def __init__(
        self,
        broker: Answering,
        *,
        admission: Admission,
        prospects: Prospects,
        heavy: HeavyWork,
        reports: Reports,
        self_checks: SelfChecks,
    ) -> None:
        self._broker = broker
        self._admission = admission
        self._prospects = prospects
        self._heavy = heavy
        self._reports = reports
        self._self_checks = self_checks
        self._looking = FairSemaphore(
            "looking artifacts up",
            places=_LOOKING,
            account_places=_LOOKING_OF_ACCOUNT,
            account_waiting=_WAITING_OF_ACCOUNT,
        )

    async def Lookup(self, request: wire.LookupRequest, _context: Context) -> wire.LookupResponse:
        caller = current_caller()
        with self._admission.telling_refusals(request.job, caller=caller):
            admitted = await self._admission.examine(request.job, caller=caller)
            async with self._looking.acquired(caller.account):
                return wire.LookupResponse(manifest=await self._broker.lookup(admitted))

    async def Plan(self, request: wire.PlanRequest, _context: Context) -> wire.PlanResponse:
        caller = current_caller()
        admitted = await self._admission.examine(request.job, caller=caller)
        async with self._looking.acquired(caller.account):
            return await self._prospects.of(admitted)

    async def Compile(self, request: wire.CompileRequest, _context: Context) -> AsyncIterator[wire.CompileResponse]:
        priority, caller = read_priority(request.priority), current_caller()
        if priority is Priority.PREWARM:
            caller.require(Role.PREWARM, what="priority prewarm")
        async with (
            self._admission.waiting(request.job, caller=caller, priority=priority) as admitted,
            aclosing(self._broker.compile(admitted)) as events,
        ):
            async for event in events:
                yield _response(event)

    async def Report(self, request: wire.ReportRequest, _context: Context) -> wire.ReportResponse:
        caller = current_caller()
        await self._heavy.in_turn(partial(self._reports.add, request.graphs), account=caller.account)
        await self._self_checks.note(request.self_checks, caller=caller)
        return wire.ReportResponse()


def _response(event: Event) -> wire.CompileResponse:
    match event:
        case wire.Accepted():
            return wire.CompileResponse(accepted=event)
        case wire.Progress():
            return wire.CompileResponse(progress=event)
        case wire.Finished():
            return wire.CompileResponse(finished=event)
