"""Records the requests of a farm, for prewarming."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from compilefarm.core.errors import InvalidRequest, MissingBlobs, NotStored
from compilefarm.service.background_recorder import BackgroundRecorder
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest, Answering, Event
from compilefarm.v1.manifest_pb2 import Manifest


class RecordingBroker:
    """A broker that records requests, except prewarms.

    A gateway does not know how torch.compile was called, so its recordings cannot be said for another environment.

    Args:
        broker: answers.
        recorder: records.
    """

    def __init__(self, broker: Answering, *, recorder: BackgroundRecorder) -> None:
        self._broker = broker
        self._recorder = recorder

    async def lookup(self, request: AdmittedRequest) -> Manifest:
        """See Broker.lookup."""
        try:
            manifest = await self._broker.lookup(request)
        except NotStored:
            self._recorder.note(request)
            raise
        self._recorder.note(request)
        return manifest

    async def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]:
        """See Broker.compile."""
        is_noted = request.priority is not Priority.PREWARM
        async with aclosing(self._broker.compile(request)) as events:
            try:
                async for event in events:
                    yield event
            except (InvalidRequest, MissingBlobs):
                # It is served to nobody, or asked for again when its tensors are there.
                is_noted = False
                raise
            finally:
                if is_noted:
                    self._recorder.note(request)
