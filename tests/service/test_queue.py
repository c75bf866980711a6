"""Who gets the next worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from compilefarm.service.queue import Policy, Queue, Ticket, first_come
from compilefarm.service.testing import ENVIRONMENT, ManualClock, ScriptedPool


def queue_of(workers: int, *, policy: Policy = first_come) -> Queue:
    pool = ScriptedPool(environments=[ENVIRONMENT] * workers)
    return Queue(pool, clock=ManualClock(), max_queued_jobs=10, policy=policy)


class Job:
    """Holds a worker from the moment it gets one until it is told to let go."""

    def __init__(self, queue: Queue, *, key: str) -> None:
        self.has_asked = asyncio.Event()
        self.has_worker = asyncio.Event()
        self.let_go = asyncio.Event()
        self.task = asyncio.create_task(self._run(queue, queue.enrol(key, environment=ENVIRONMENT)))

    async def _run(self, queue: Queue, ticket: Ticket) -> None:
        self.has_asked.set()
        async with queue.worker(ticket):
            self.has_worker.set()
            await self.let_go.wait()


async def test_a_worker_given_to_a_job_that_is_just_being_given_up_goes_to_the_next() -> None:
    queue = queue_of(1)
    async with queue.worker(queue.enrol("a", environment=ENVIRONMENT)):
        second, third = Job(queue, key="b"), Job(queue, key="c")
        await third.has_asked.wait()
        assert (queue.waiting, queue.running) == (2, 1)
    # The worker is the second job's by now, though its task has not run yet.
    assert (queue.waiting, queue.running) == (1, 1)
    second.task.cancel()
    await third.has_worker.wait()
    assert second.task.cancelled()
    assert not second.has_worker.is_set()
    third.let_go.set()
    await third.task
    assert (queue.waiting, queue.running) == (0, 0)


async def test_a_job_that_is_given_up_while_it_waits_leaves_the_queue() -> None:
    queue = queue_of(1)
    first, second = Job(queue, key="a"), Job(queue, key="b")
    await second.has_asked.wait()
    assert (queue.waiting, queue.running) == (1, 1)
    second.task.cancel()
    await asyncio.wait([second.task])
    assert (queue.waiting, queue.running) == (0, 1)
    first.let_go.set()
    await first.task


async def test_the_policy_decides_who_is_next() -> None:
    def last_come(waiting: Sequence[Ticket]) -> Sequence[Ticket]:
        return sorted(waiting, key=lambda ticket: -ticket.number)

    queue = queue_of(1, policy=last_come)
    jobs = {key: Job(queue, key=key) for key in "abcd"}
    await jobs["d"].has_asked.wait()
    assert [queue.jobs_ahead(key) for key in "abcd"] == [0, 2, 1, 0]
    order = []
    for key in "adcb":
        await jobs[key].has_worker.wait()
        order.append([other for other in "abcd" if jobs[other].has_worker.is_set()])
        jobs[key].let_go.set()
        await jobs[key].task
    assert order == [["a"], ["a", "d"], ["a", "c", "d"], ["a", "b", "c", "d"]]
