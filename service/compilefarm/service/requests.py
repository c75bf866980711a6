"""Admitted requests, and the interface of what answers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from compilefarm.core.keys import Key
from compilefarm.service.callers import Caller
from compilefarm.service.durations import Kind
from compilefarm.service.priorities import Priority
from compilefarm.v1.compile_service_pb2 import Accepted, Finished, Progress
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """A well-formed request for a job.

    Attributes:
        job: what is asked for.
        key: the job's key, in a format that the caller knows.
        kind: which jobs take about as long.
        caller: who asks.
        priority: how urgent it is.
        held_bytes: memory that the job takes.
    """

    job: Job
    key: Key
    kind: Kind
    caller: Caller
    priority: Priority
    held_bytes: int = 0


Event = Accepted | Progress | Finished


class Answering(Protocol):
    """Answers requests; see Broker for the methods."""

    async def lookup(self, request: AdmittedRequest) -> Manifest: ...

    def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]: ...
