"""Keeps prewarms in the journal from before they are accepted until they are done, and resumes what is left in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from compilefarm.core.errors import (
    Busy,
    Draining,
    FarmError,
    InvalidRequest,
    JobCancelled,
    MissingBlobs,
    NoMatchingWorker,
    StoreUnavailable,
    WorkerLost,
)
from compilefarm.core.keys import UNNAMED_FORMAT, Key
from compilefarm.service.active_job import ActiveJob, Purpose, State
from compilefarm.service.admission import Admission
from compilefarm.service.callers import Caller
from compilefarm.service.clock import Clock, pause
from compilefarm.service.incidents import log_failure
from compilefarm.service.journal import Journal
from compilefarm.service.journal_entries import JournalEntry
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest, Answering, Event
from compilefarm.service.roles import Role
from compilefarm.service.state_folder import bring_over
from compilefarm.store.guard_turns import GuardTurns
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.journal_pb2 import AcceptedJob
from compilefarm.v1.manifest_pb2 import Manifest

log = logging.getLogger(__name__)

# What the service does by itself goes on an account that no caller can have.
_OWN_ACCOUNT = " the service"
_RESUMED_AT_ONCE = 16
_RESUME_SECONDS = 60.0
# How often it is looked for what others have left.
TAKE_OVER_SECONDS = 9.0
# Trying again cannot end otherwise.
_FINAL = (InvalidRequest, JobCancelled, MissingBlobs)


class JournalingBroker:
    """A broker whose prewarms are in a journal before they are accepted.

    Args:
        broker: answers.
        journal: keeps them.
    """

    def __init__(self, broker: Answering, *, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal

    async def lookup(self, request: AdmittedRequest) -> Manifest:
        """See Broker.lookup."""
        return await self._broker.lookup(request)

    async def compile(self, request: AdmittedRequest) -> AsyncGenerator[Event, None]:
        """See Broker.compile."""
        entry = await self._keep(request) if request.priority is Priority.PREWARM else None
        try:
            async with aclosing(self._broker.compile(request)) as events:
                async for event in events:
                    yield event
        except FarmError as error:
            # The caller knows. Of a service that goes down it knows that it may ask again, and need not.
            if entry is not None and not isinstance(error, Draining):
                self._journal.remove(entry)
            raise

    async def _keep(self, request: AdmittedRequest) -> JournalEntry:
        return await self._journal.keep(
            request.key,
            job=request.job,
            tenant=request.caller.tenant,
            namespaces=request.caller.namespaces,
            account=request.caller.account,
        )


class JournalSettler:
    """Observes jobs, and removes the entries of those that are done. Satisfies JobObserver.

    Args:
        journal: has the entries.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._guard_turns = GuardTurns()
        self._settling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Returns when the entries are removed of all jobs that are done."""
        await asyncio.gather(*self._settling)

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """See JobObserver.changed."""
        del before, cause
        if not job.is_over or job.purpose is not Purpose.COMPILE:
            return
        if isinstance(job.result, Manifest) and job.result.guards:
            # A key may have thousands of entries, each for other sizes.
            settling = asyncio.create_task(self._settle(job, job.result.guards), name=f"journal entries of {job.key}")
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
            settling.add_done_callback(log_failure)
            return
        for entry, hints in self._entries_of(job):
            if _is_done(job, hints=hints):
                self._journal.forget(entry)

    async def _settle(self, job: ActiveJob, guards: Sequence[Expression]) -> None:
        for entry, hints in self._entries_of(job):
            if await self._guard_turns.hold(guards, hints):
                self._journal.forget(entry)

    def _entries_of(self, job: ActiveJob) -> Iterator[tuple[JournalEntry, Sequence[int]]]:
        """Yields the entries that a job may settle, each with the values of its symbols."""
        for entry in self._journal.entries_of(job.key):
            wanted = self._journal.find_wanted(entry)
            if wanted is not None and job.namespace in wanted.namespaces:
                yield entry, wanted.hints


class Resumption:
    """Resumes the prewarms that gateways had accepted which are gone, a few at a time.

    Args:
        journal: takes them over.
        former: a folder in which a release before this one may have left some.
        admission: examines them anew: releases differ.
        broker: has them done.
        clock: time.
    """

    def __init__(
        self, journal: Journal, *, former: Path | None, admission: Admission, broker: Answering, clock: Clock
    ) -> None:
        self._journal = journal
        self._former = former
        self._admission = admission
        self._broker = broker
        self._clock = clock
        self._turns = asyncio.Semaphore(_RESUMED_AT_ONCE)

    async def run(self) -> None:
        """Does for ever what others have left."""
        async with asyncio.TaskGroup() as tasks:
            if self._former is not None:
                for entry in await bring_over(self._former, journal=self._journal):
                    tasks.create_task(self._take_turn(entry))
            while True:
                for entry in await self._take_over():
                    tasks.create_task(self._take_turn(entry))
                await pause(TAKE_OVER_SECONDS, clock=self._clock)

    async def _take_over(self) -> list[JournalEntry]:
        try:
            return await self._journal.take_over()
        except StoreUnavailable as error:
            log.warning("what other gateways may have left is not looked for at present: %s", error)
            return []

    async def _take_turn(self, entry: JournalEntry) -> None:
        async with self._turns:
            await self._resume(entry)

    async def _resume(self, entry: JournalEntry) -> None:
        """Does one of them. What cannot be done at present is tried again: nobody else asks for it."""
        is_over = False
        while not is_over:
            try:
                is_over = await self._try(entry)
            except (Busy, NoMatchingWorker, StoreUnavailable, WorkerLost) as error:
                log.warning("job %s: accepted before, and tried again: %s", entry.key, error)
                await pause(getattr(error, "retry_after_seconds", _RESUME_SECONDS), clock=self._clock)
            except Draining:
                return
            except FarmError as error:
                log.warning("job %s: accepted before, and given up: %s", entry.key, error)
                self._journal.forget(entry)
                return

    async def _try(self, entry: JournalEntry) -> bool:
        """Tries one of them. Returns whether it is there no more."""
        accepted = await self._journal.read(entry)
        if accepted is None:
            return True
        key = await self._redo(accepted)
        if key.text != accepted.key:
            # An older release had accepted it, under a key that this one does not make.
            self._journal.forget(entry)
        return False

    async def _redo(self, accepted: AcceptedJob) -> Key:
        caller = Caller(
            tenant=accepted.tenant,
            role=Role.PREWARM,
            namespaces=list(accepted.namespaces),
            key_formats=[accepted.key_format or UNNAMED_FORMAT],
            account=_OWN_ACCOUNT,
        )
        request = await self._admission.examine(accepted.job, caller=caller, priority=Priority.PREWARM)
        async with aclosing(self._broker.compile(request)) as events:
            async for _ in events:
                pass
        return request.key


def _is_done(job: ActiveJob, *, hints: Sequence[int]) -> bool:
    """Returns whether what became of a job, other than an artifact with guards, settles a request for its key, for some
    values of its symbols.
    """
    if job.error is not None:
        return isinstance(job.error, _FINAL)
    return job.state is not State.FAILED or list(job.job.hints) == list(hints)
