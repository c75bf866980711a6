"""Admits requests: validates the job, computes its key, and bounds the memory that waiting requests take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from threading import Lock
from typing import Protocol

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import FarmError
from compilefarm.core.keys import Key, choose_format, key_of
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.allowances import Allowance
from compilefarm.service.callers import Caller
from compilefarm.service.durations import kind_of
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.validation import validate
from compilefarm.v1.job_pb2 import Job

# A large model has hundreds of graphs. Each takes about two kilobytes here.
_MOST_KNOWN = 4096
# Jobs that wait are held in memory. Measured: a value takes 4 bytes on the wire, and 49 when it is parsed; a text takes
# what it takes there.
_VALUE_BYTES = 48


class RefusalObserver(Protocol):
    """Observes requests that end with an error."""

    def refused(self, job: Job, *, caller: Caller, error: FarmError) -> None:
        """A request for a job ended so."""


class Admission:
    """Admits requests.

    Args:
        heavy: examines large requests.
        jobs: know whether the service goes down.
        waiting: bounds what requests that wait take of the memory.
        max_nodes: that a graph may have.
        max_values: that a request may hold.
        observers: are told of refusals.
    """

    def __init__(
        self,
        *,
        heavy: HeavyWork,
        jobs: ActiveJobs,
        waiting: Allowance,
        max_nodes: int,
        max_values: int,
        observers: Sequence[RefusalObserver],
    ) -> None:
        self._heavy = heavy
        self._jobs = jobs
        self._waiting = waiting
        self._max_nodes = max_nodes
        self._max_values = max_values
        self._observers = observers
        self._known = _KnownJobs()

    async def examine(self, job: Job, *, caller: Caller, priority: Priority = Priority.INTERACTIVE) -> AdmittedRequest:
        """A request, if it is well-formed and the service is open.

        Args:
            job: what is asked for.
            caller: who asks.
            priority: how urgent it is.

        Raises:
            InvalidRequest: the job is malformed.
            Busy: too much of the caller is being examined.
            Draining: the service is going down.
        """
        work = partial(self._key_and_values, job, format=choose_format(caller.key_formats), namespace=caller.namespace)
        size_bytes = job.ByteSize()
        key, value_count = await self._heavy.run(work, size_bytes=size_bytes, account=caller.account)
        self._jobs.require_open()
        return AdmittedRequest(
            job=job,
            key=key,
            kind=kind_of(job, key=key),
            caller=caller,
            priority=priority,
            held_bytes=value_count * _VALUE_BYTES + size_bytes,
        )

    @asynccontextmanager
    async def waiting(self, job: Job, *, caller: Caller, priority: Priority) -> AsyncIterator[AdmittedRequest]:
        """Like `examine`, for one that may wait: it counts as held in memory for as long as the context lasts. Refusals
        within it are told.
        """
        with self.telling_refusals(job, caller=caller), self._waiting.using(caller.account) as add:
            request = await self.examine(job, caller=caller, priority=priority)
            add(request.held_bytes)
            yield request

    @contextmanager
    def telling_refusals(self, job: Job, *, caller: Caller) -> Iterator[None]:
        """Tells observers of a request that is refused within the context."""
        try:
            yield
        except FarmError as error:
            for observer in self._observers:
                observer.refused(job, caller=caller, error=error)
            raise

    def _key_and_values(self, job: Job, *, format: int, namespace: str) -> tuple[Key, int]:
        question = digest_of(job.SerializeToString()), format, namespace
        if (known := self._known.find(question)) is not None:
            return known
        value_count = validate(job, max_nodes=self._max_nodes, max_values=self._max_values)
        found = key_of(job, format=format), value_count
        self._known.add(question, found)
        return found


# The digest of a job, a format of keys, and a namespace: nobody learns from how long an answer takes what others ask.
_Question = tuple[str, int, str]


class _KnownJobs:
    """Keys of jobs that were valid, and how many values they have. The pods of a fleet ask for the same jobs, and it
    takes a hundred times as long to go through a large one as to digest it. May be used in threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[_Question, tuple[Key, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, question: _Question) -> tuple[Key, int] | None:
        """Returns what is known of a job; None if it was not asked for lately."""
        with self._lock:
            if question in self._known:
                self._known.move_to_end(question)
            return self._known.get(question)

    def add(self, question: _Question, found: tuple[Key, int]) -> None:
        """Keeps what was found; what was asked for least recently goes."""
        with self._lock:
            self._known[question] = found
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
