"""A request that was admitted, with the key of its job."""

from __future__ import annotations

from dataclasses import dataclass

from compilefarm.core.keys import Key
from compilefarm.service.callers import Caller
from compilefarm.service.durations import Kind
from compilefarm.service.priorities import Priority
from compilefarm.v1.job_pb2 import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """A request for a job that is well-formed.

    Attributes:
        job: what is asked for.
        key: the job's key, in a format that the caller knows.
        kind: which jobs take about as long.
        caller: who asks.
        priority: how urgent it is.
    """

    job: Job
    key: Key
    kind: Kind
    caller: Caller
    priority: Priority
