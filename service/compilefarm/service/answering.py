"""The seam between the wire and the logic: what answers requests that were admitted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from compilefarm.service.admitted import AdmittedRequest
from compilefarm.v1.compile_service_pb2 import Accepted, Finished, Progress
from compilefarm.v1.manifest_pb2 import Manifest

Event = Accepted | Progress | Finished


class Answering(Protocol):
    """What answers requests. Broker says what the methods do."""

    async def lookup(self, request: AdmittedRequest) -> Manifest: ...

    def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]: ...
