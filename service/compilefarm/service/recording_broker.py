"""Records the requests of a farm, for prewarming. No error in that fails a request."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from compilefarm.core.errors import (
    MissingBlobs,
    NotStored,
    StoreUnavailable,
    UnusableRecording,
    UnusableRequestFile,
)
from compilefarm.core.recorder import Recorder
from compilefarm.core.requests import Request
from compilefarm.service.constants import read_constants, require_constants
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest, Answering, Event
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.compile_service_pb2 import Finished
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest

log = logging.getLogger(__name__)


class RecordingBroker:
    """A broker that records requests, except prewarms.

    A gateway does not know how torch.compile was called, so its recordings cannot be said for another environment.

    Args:
        broker: answers.
        folder: of the recording.
        store: holds the tensors of graphs.

    Raises:
        UnusableRecording: nothing can be recorded in that folder.
    """

    def __init__(self, broker: Answering, *, folder: Path, store: ArtifactStore) -> None:
        self._broker = broker
        self._recorder = Recorder(folder)
        self._store = store
        self._positions = itertools.count()

    async def lookup(self, request: AdmittedRequest) -> Manifest:
        """See Broker.lookup."""
        try:
            manifest = await self._broker.lookup(request)
        except NotStored:
            await self._note(request.job)
            raise
        await self._note(request.job)
        return manifest

    async def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]:
        """See Broker.compile."""
        job = request.job
        async with aclosing(self._broker.compile(request)) as events:
            is_noted = request.priority is Priority.PREWARM
            async for event in events:
                # One that misses tensors is asked for again when they are there.
                if not is_noted and (isinstance(event, Finished) or await self._has_constants(job)):
                    is_noted = True
                    await self._note(job)
                yield event

    async def _has_constants(self, job: Job) -> bool:
        try:
            await require_constants(job, store=self._store)
        except (MissingBlobs, StoreUnavailable):
            return False
        return True

    async def _note(self, job: Job) -> None:
        try:
            blobs = await read_constants(job, store=self._store)
        except (MissingBlobs, StoreUnavailable):
            # Who only looks up sends no tensors; and what the store cannot tell now is no reason to fail a request.
            blobs = {}
        request, position = Request(job=job, blobs=blobs), next(self._positions)
        try:
            await asyncio.to_thread(self._recorder.note_request, request, name="", position=position)
        except (UnusableRecording, UnusableRequestFile) as error:
            log.error("a request is missing from the recording: %s", error)
