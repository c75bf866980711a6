"""Single flight: one active job per key, however many ask for it; where callers are trusted differently, one for each
namespace at most.

A job is a task of its own, so it outlives the request that it began with. Everything between the first look into the
store and the last write to it happens inside that task. Whoever asks therefore either joins a job whose result is still
to come, or begins one that finds in the store what the job before has left there: no two are done for one key at a
time, and none compiles what has just been compiled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from compilefarm.core.errors import Draining, FarmError, JobCancelled
from compilefarm.service.active_job import ActiveJob, JobObserver, Stage, Work
from compilefarm.service.allowances import Allowance
from compilefarm.service.clock import Clock, wait_at_most
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.waiters import Waiters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A request that waits for a job.

    Attributes:
        job: the job.
        leads: whether it began with this request, because there was none.
        first_stage: index of the first stage that is told: the one that the job is in when the request comes.
    """

    job: ActiveJob
    leads: bool
    first_stage: int


class ActiveJobs:
    """The compiles of this moment.

    Attributes:
        closed: whether none begins any more.

    Args:
        work: does a job.
        clock: time.
        progress_seconds: longest silence towards those who wait.
        orphan_seconds: how long a job goes on after the last one who waited for it went away.
        on_priority: called with a job when its priority has changed.
        memory: bounds what jobs take of the memory, on the accounts of those who began them; they may have gone.
        observers: are told of each job.
    """

    def __init__(
        self,
        work: Work,
        *,
        clock: Clock,
        progress_seconds: float,
        orphan_seconds: float,
        on_priority: Callable[[ActiveJob], None],
        memory: Allowance,
        observers: Sequence[JobObserver],
    ) -> None:
        self._work = work
        self._clock = clock
        self._progress_seconds = progress_seconds
        self._orphan_seconds = orphan_seconds
        self._on_priority = on_priority
        self._memory = memory
        self._observers = observers
        # By namespace and key. One that was given up can be joined no more; it is over when its worker is free.
        self._joinable: dict[tuple[str, str], ActiveJob] = {}
        self._tasks: dict[asyncio.Task[None], ActiveJob] = {}
        self.closed = False

    @contextmanager
    def join(self, request: AdmittedRequest) -> Iterator[Joined]:
        """Has a request wait for the job of its key for as long as the context lasts; begins the job if there is none
        whose result will lie where the caller may read. A job for which nobody waits any more is given up after a
        while, unless it is a prewarm.

        Raises:
            Draining: no jobs begin any more.
            Busy: jobs that the account began take too much of the memory.
        """
        self.require_open()
        job = self._find(request.key.text, namespaces=request.caller.namespaces)
        leads = job is None
        if job is None:
            job = self._begin(request)
        with job.waiters.waiting(request.priority):
            yield Joined(job=job, leads=leads, first_stage=max(len(job.stages) - 1, 0))

    async def watch_quietly(self, joined: Joined) -> AsyncGenerator[Stage, None]:
        """Yields where the job stands after each while in which it does not end."""
        while not await joined.job.ends_within(self._progress_seconds):
            yield joined.job.stage

    async def watch(self, joined: Joined) -> AsyncGenerator[Stage, None]:
        """Yields where the job stands and every stage it enters, the last one again after a while without news."""
        job, seen = joined.job, joined.first_stage
        while True:
            while seen < len(job.stages):
                seen += 1
                yield job.stages[seen - 1]
            if job.is_over:
                return
            changed = await job.changes_within(self._progress_seconds)
            if not changed:
                yield job.stage

    def require_open(self) -> None:
        """Passes while jobs may begin.

        Raises:
            Draining: the service is going down.
        """
        if self.closed:
            raise Draining("the service is going down and takes no more requests; ask again when it is back")

    def is_under_way(self, key: str, *, namespaces: Sequence[str]) -> bool:
        """Returns whether the job of a key is under way whose result will lie in one of some namespaces."""
        job = self._find(key, namespaces=namespaces)
        return job is not None and job.is_under_way

    def under_way(self) -> list[ActiveJob]:
        """The jobs that wait or are being done, in order of arrival."""
        return [job for job in self._joinable.values() if job.is_under_way]

    def end(self, key: str, *, why: FarmError) -> None:
        """Ends the jobs of a key. Those who wait get `why`; a request that comes later begins another."""
        for place, job in list(self._joinable.items()):
            if job.key == key:
                del self._joinable[place]
                job.give_up(why)

    async def drain(self) -> AsyncGenerator[int, None]:
        """Lets no more jobs begin. Yields how many are not over, at once and whenever one is, until none is left.
        Closing the iterator does not end the drain.
        """
        if not self.closed:
            log.info("draining: no more jobs are taken; left are %d", len(self._tasks))
        self.closed = True
        while True:
            yield len(self._tasks)
            if not self._tasks:
                return
            await asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def close(self, *, grace_seconds: float) -> None:
        """Lets no more jobs begin, and ends those that are not over after the grace time."""
        self.closed = True
        tasks = dict(self._tasks)
        log.info("going down: jobs left are %d, and get %.0f s to end", len(tasks), grace_seconds)
        await wait_at_most(grace_seconds, list(tasks), clock=self._clock)
        for job in tasks.values():
            job.give_up(Draining("the service is going down and gave up this job; ask again when it is back"))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, key: str, *, namespaces: Sequence[str]) -> ActiveJob | None:
        jobs = (self._joinable.get((namespace, key)) for namespace in namespaces)
        return next((job for job in jobs if job is not None and not job.is_over), None)

    def _begin(self, request: AdmittedRequest) -> ActiveJob:
        with ExitStack() as stack:
            stack.enter_context(self._memory.using(request.caller.account))(request.held_bytes)
            job = self._make(request)
            self._joinable[job.namespace, job.key] = job
            task = job.begin(self._work)
            held = stack.pop_all()
        self._tasks[task] = job
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: held.close())
        return job

    def _make(self, request: AdmittedRequest) -> ActiveJob:
        waiters = Waiters(
            request.priority,
            clock=self._clock,
            grace_seconds=self._orphan_seconds,
            on_change=lambda: self._on_priority(job),
            on_abandoned=lambda: self._abandon(job),
        )
        job = ActiveJob(
            request,
            namespace=request.caller.namespace,
            tenant=request.caller.tenant,
            waiters=waiters,
            clock=self._clock,
            observers=self._observers,
        )
        return job

    def _abandon(self, job: ActiveJob) -> None:
        log.info("job %s: given up, since nobody waits for it any more", job.key)
        del self._joinable[job.namespace, job.key]
        job.give_up(JobCancelled("nobody waited for this job any more"))

    def _forget(self, task: asyncio.Task[None]) -> None:
        job = self._tasks.pop(task)
        place = job.namespace, job.key
        if self._joinable.get(place) is job:
            del self._joinable[place]
