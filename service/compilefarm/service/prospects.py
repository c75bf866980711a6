"""Answers whether a job is stored, under way, quarantined, or could be compiled. Makes and counts nothing."""

from __future__ import annotations

from compilefarm.core.artifacts import compile_seconds_of
from compilefarm.core.errors import NoMatchingWorker
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.durations import Durations
from compilefarm.service.quarantine import Quarantine
from compilefarm.service.queue import Queue
from compilefarm.service.requests import AdmittedRequest
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.compile_service_pb2 import PlanResponse, Prospect


class Prospects:
    """Answers what would become of a request, and does nothing of it.

    Args:
        store: has artifacts.
        quarantine: has failures that are remembered.
        jobs: are under way.
        queue: knows the workers.
        durations: know how long compiles take.
    """

    def __init__(
        self, *, store: ArtifactStore, quarantine: Quarantine, jobs: ActiveJobs, queue: Queue, durations: Durations
    ) -> None:
        self._store = store
        self._quarantine = quarantine
        self._jobs = jobs
        self._queue = queue
        self._durations = durations

    async def of(self, request: AdmittedRequest) -> PlanResponse:
        """Returns what would become of a request now.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        key, namespaces = request.key.text, request.caller.namespaces
        stored = await self._store.find_manifest(key, namespaces=namespaces, hints=request.job.hints)
        if stored is not None:
            self._durations.note_stored(request.kind, stored)
            return PlanResponse(key=key, prospect=Prospect.PROSPECT_HIT, compile_seconds=compile_seconds_of(stored))
        prospect, problem = await self._prospect(request)
        seconds = self._durations.estimate(request.kind)
        return PlanResponse(key=key, prospect=prospect, problem=problem, compile_seconds=seconds)

    async def _prospect(self, request: AdmittedRequest) -> tuple[Prospect.ValueType, str]:
        """Returns the prospect of a request for which nothing is stored, and why there would be no artifact."""
        key, namespaces = request.key.text, request.caller.namespaces
        quarantined = await self._quarantine.find(key, namespaces=namespaces, hints=request.job.hints)
        if quarantined is not None:
            return Prospect.PROSPECT_QUARANTINED, quarantined.failure.message
        if self._jobs.is_under_way(key, namespaces=namespaces):
            return Prospect.PROSPECT_UNDER_WAY, ""
        try:
            return Prospect.PROSPECT_MISS, self._queue.require_worker(request.job.environment)
        except NoMatchingWorker as error:
            return Prospect.PROSPECT_NO_WORKER, str(error)
