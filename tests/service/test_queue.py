"""Who gets the next worker, and who has to give one back."""

from __future__ import annotations

import asyncio

import pytest
from obstore.store import MemoryStore

from compilefarm.core import environments
from compilefarm.service import matching
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock
from compilefarm.service.declared_environments import DeclaredEnvironments
from compilefarm.service.durations import Durations, Kind
from compilefarm.service.leases import Preempted
from compilefarm.service.limits import Limits
from compilefarm.service.offers import Offers
from compilefarm.service.priorities import Priority
from compilefarm.service.queue import Queue
from compilefarm.service.recovery import Recovery
from compilefarm.service.slots import Slots
from compilefarm.service.testing import ENVIRONMENT, ManualClock, ScriptedPool, active_job
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.v1.environment_pb2 import Environment

KIND = Kind(platform="a machine", options="", size=4)
OTHER = Environment(torch="2.11.0+cpu")


def queue_of(
    workers: int, *, pool: ScriptedPool | None = None, clock: Clock | None = None, durations: Durations | None = None
) -> Queue:
    queue = Queue(
        pool or ScriptedPool(environments=[ENVIRONMENT] * workers),
        clock=clock or ManualClock(),
        limits=Limits(queued_jobs=100, tenant_jobs=100),
        durations=durations or Durations(),
        recovery=Recovery(clock=ManualClock(), seconds=0.0),
        slots=Slots(tenant_jobs=None, has_several_tenants=lambda: False),
        declared=DeclaredEnvironments(
            (), backend=ObjectBackend(MemoryStore(), location="memory:"), clock=ManualClock()
        ),
    )
    queue.open()
    return queue


class Job:
    """Holds a worker from the moment it gets one until it is told to let go."""

    def __init__(
        self,
        queue: Queue,
        *,
        key: str,
        priority: Priority = Priority.INTERACTIVE,
        tenant: str = "",
        environment: Environment = ENVIRONMENT,
        kind: Kind = KIND,
    ) -> None:
        self.key = key
        self.has_asked = asyncio.Event()
        self.has_worker = asyncio.Event()
        self.let_go = asyncio.Event()
        self.worker = ""
        self.active = active_job(
            key, clock=ManualClock(), tenant=tenant, priority=priority, environment=environment, kind=kind
        )
        queue.require_room(self.active)

        async def run() -> None:
            self.has_asked.set()
            async with queue.worker(self.active) as self.worker:
                self.has_worker.set()
                await self.let_go.wait()

        self.task = asyncio.create_task(run())

    async def end(self) -> None:
        """Gives the worker back."""
        await self.has_worker.wait()
        self.let_go.set()
        await self.task


def enrolled(queue: Queue, key: str) -> ActiveJob:
    job = active_job(key, clock=ManualClock(), kind=KIND)
    queue.require_room(job)
    return job


async def enter(jobs: list[Job]) -> None:
    """Waits until all of them stand in the queue, or have a worker."""
    for job in jobs:
        await job.has_asked.wait()


async def order_of(jobs: list[Job]) -> str:
    """Lets jobs run one after the other, and returns their keys in the order in which they got the only worker."""
    order = ""
    while waiting := [job for job in jobs if job.key not in order]:
        await asyncio.wait(
            [asyncio.create_task(job.has_worker.wait()) for job in waiting], return_when="FIRST_COMPLETED"
        )
        (running,) = [job for job in waiting if job.has_worker.is_set()]
        order += running.key
        await running.end()
    return order


async def test_a_worker_given_to_a_job_that_is_just_being_given_up_goes_to_the_next() -> None:
    queue = queue_of(1)
    async with queue.worker(enrolled(queue, "a")):
        second, third = Job(queue, key="b"), Job(queue, key="c")
        await enter([second, third])
        assert (queue.waiting, queue.running) == (2, 1)
    # The worker is the second job's by now, though its task has not run yet.
    assert (queue.waiting, queue.running) == (1, 1)
    second.task.cancel()
    await third.end()
    assert second.task.cancelled()
    assert not second.has_worker.is_set()
    assert (queue.waiting, queue.running) == (0, 0)


async def test_a_job_that_is_given_up_while_it_waits_leaves_the_queue() -> None:
    queue = queue_of(1)
    first, second = Job(queue, key="a"), Job(queue, key="b")
    await enter([first, second])
    assert (queue.waiting, queue.running) == (1, 1)
    second.task.cancel()
    await asyncio.wait([second.task])
    assert (queue.waiting, queue.running) == (0, 1)
    await first.end()


async def test_the_more_urgent_come_first_and_among_equals_the_one_that_came_first() -> None:
    queue = queue_of(1)
    jobs = [Job(queue, key="0")]
    for key, priority in (
        ("p", Priority.PREWARM),
        ("b", Priority.BACKGROUND),
        ("c", Priority.BACKGROUND),
        ("i", Priority.INTERACTIVE),
        ("j", Priority.INTERACTIVE),
    ):
        jobs.append(Job(queue, key=key, priority=priority))
    await enter(jobs)
    ahead = {job.key: queue.outlook(job.active).jobs_ahead for job in jobs}
    assert ahead == {"0": 0, "i": 0, "j": 1, "b": 2, "c": 3, "p": 4}
    assert await order_of(jobs) == "0ijbcp"


async def test_jobs_of_one_key_each_have_an_outlook_of_their_own() -> None:
    queue = queue_of(1)
    # As for two namespaces.
    jobs = [Job(queue, key="0"), Job(queue, key="a"), Job(queue, key="a")]
    await enter(jobs)
    assert [queue.outlook(job.active).jobs_ahead for job in jobs] == [0, 0, 1]
    for job in jobs:
        await job.end()


async def test_tenants_take_turns_however_many_jobs_one_of_them_has() -> None:
    queue = queue_of(2)
    many = [Job(queue, key=f"a{number}", tenant="a") for number in range(6)]
    few = [Job(queue, key=f"b{number}", tenant="b") for number in range(2)]
    await enter(many + few)
    # Both workers went to the one that was there first; what is given back goes to the other, who has none.
    await many[0].end()
    await few[0].has_worker.wait()
    assert not many[2].has_worker.is_set()
    await many[1].end()
    await many[2].has_worker.wait()
    assert not few[1].has_worker.is_set()
    await few[0].end()
    await few[1].has_worker.wait()
    for job in (few[1], *many[2:]):
        await job.end()


async def test_a_tenant_with_seven_jobs_running_yields_to_the_background_job_of_another() -> None:
    queue = queue_of(8)
    running = [Job(queue, key=f"r{number}", tenant="a") for number in range(7)]
    other = Job(queue, key="o", tenant="c")
    await enter([*running, other])
    background = Job(queue, key="b", tenant="b", priority=Priority.BACKGROUND)
    interactive = Job(queue, key="i", tenant="a")
    await enter([background, interactive])
    # 7 + 1 against 1 * 2^3, and the background job was there first.
    assert queue.outlook(interactive.active).jobs_ahead == 1
    await running[0].end()
    # 6 + 1 against 8.
    await interactive.has_worker.wait()
    assert not background.has_worker.is_set()
    for job in (interactive, background, other, *running[1:]):
        await job.end()


async def test_a_prewarm_comes_after_all_others_whoever_has_what() -> None:
    queue = queue_of(1)
    jobs = [Job(queue, key="0", tenant="a"), Job(queue, key="p", tenant="idle", priority=Priority.PREWARM)]
    jobs += [Job(queue, key=key, tenant="a", priority=Priority.BACKGROUND) for key in "bcd"]
    await enter(jobs)
    assert await order_of(jobs) == "0bcdp"


async def test_a_job_that_becomes_more_urgent_moves_up() -> None:
    queue = queue_of(1)
    jobs = [Job(queue, key=key, priority=Priority.BACKGROUND) for key in "0abc"]
    await enter(jobs)
    jobs[3].active.waiters.priority = Priority.INTERACTIVE
    queue.reconsider(jobs[3].active)
    assert queue.outlook(jobs[3].active).jobs_ahead == 0
    assert await order_of(jobs) == "0cab"


async def test_an_interactive_job_takes_the_worker_of_the_prewarm_that_began_last() -> None:
    clock = ManualClock()
    queue = queue_of(2, clock=clock)
    old = Job(queue, key="p", priority=Priority.PREWARM)
    await old.has_worker.wait()
    clock.advance(5.0)
    young = Job(queue, key="q", priority=Priority.PREWARM)
    await young.has_worker.wait()
    interactive = Job(queue, key="i")
    await interactive.has_worker.wait()
    assert interactive.worker == young.worker
    with pytest.raises(Preempted, match=f"{young.worker} was taken back"):
        await young.task
    assert not old.task.done()
    await interactive.end()
    await old.end()


async def test_no_more_is_taken_back_than_is_needed() -> None:
    queue = queue_of(3)
    prewarms = [Job(queue, key=f"p{number}", priority=Priority.PREWARM) for number in range(3)]
    for job in prewarms:
        await job.has_worker.wait()
    first, second = Job(queue, key="i"), Job(queue, key="j")
    await enter([first, second])
    # Whatever is looked at meanwhile: two are wanted, and two are on their way back.
    for _ in range(3):
        queue.reconsider(first.active)
    await first.has_worker.wait()
    await second.has_worker.wait()
    ended = await asyncio.wait([job.task for job in prewarms], return_when="FIRST_COMPLETED")
    assert len(ended[1]) == 1
    for task in ended[0]:
        assert isinstance(task.exception(), Preempted)
    for job in (first, second, *(job for job in prewarms if not job.task.done())):
        await job.end()


@pytest.mark.parametrize("holder", [Priority.INTERACTIVE, Priority.BACKGROUND])
async def test_nothing_but_a_prewarm_is_taken_back(holder: Priority) -> None:
    queue = queue_of(1)
    running = Job(queue, key="r", priority=holder)
    await running.has_worker.wait()
    waiting = Job(queue, key="i")
    await enter([waiting])
    assert queue.waiting == 1
    await running.end()
    await waiting.end()


async def test_a_background_job_takes_nothing_back() -> None:
    queue = queue_of(1)
    running = Job(queue, key="p", priority=Priority.PREWARM)
    await running.has_worker.wait()
    waiting = Job(queue, key="b", priority=Priority.BACKGROUND)
    await enter([waiting])
    assert queue.waiting == 1
    await running.end()
    await waiting.end()


async def test_a_worker_of_another_environment_is_not_taken_back() -> None:
    queue = queue_of(0, pool=ScriptedPool(environments=[ENVIRONMENT, OTHER]))
    running = Job(queue, key="r")
    other = Job(queue, key="p", priority=Priority.PREWARM, environment=OTHER)
    await running.has_worker.wait()
    await other.has_worker.wait()
    waiting = Job(queue, key="i")
    await enter([waiting])
    assert queue.waiting == 1
    await running.end()
    await waiting.end()
    await other.end()


async def test_a_prewarm_that_somebody_waits_for_by_now_is_not_taken_back() -> None:
    queue = queue_of(1)
    running = Job(queue, key="p", priority=Priority.PREWARM)
    await running.has_worker.wait()
    running.active.waiters.priority = Priority.INTERACTIVE
    queue.reconsider(running.active)
    waiting = Job(queue, key="i")
    await enter([waiting])
    assert queue.waiting == 1
    await running.end()
    await waiting.end()


async def test_a_worker_is_taken_back_in_the_moment_in_which_it_is_given() -> None:
    queue = queue_of(1)
    async with queue.worker(enrolled(queue, "a")):
        prewarm, interactive = Job(queue, key="p", priority=Priority.PREWARM), Job(queue, key="i")
        await enter([prewarm, interactive])
        # It was to be the next one, until the prewarm became urgent and went ahead.
        for job, priority in ((prewarm, Priority.INTERACTIVE), (interactive, Priority.BACKGROUND)):
            job.active.waiters.priority = priority
            queue.reconsider(job.active)
    # The worker is the prewarm's, whose task has not run yet.
    for job, priority in ((prewarm, Priority.PREWARM), (interactive, Priority.INTERACTIVE)):
        job.active.waiters.priority = priority
        queue.reconsider(job.active)
    await interactive.end()
    with pytest.raises(Preempted):
        await prewarm.task


async def test_a_worker_that_goes_on_with_a_job_gets_no_other_before_that_one() -> None:
    pool = ScriptedPool()
    pool.keep("worker-0", key="kept")
    queue = queue_of(1, pool=pool)
    other, kept = Job(queue, key="other"), Job(queue, key="kept")
    await enter([other, kept])
    assert (kept.worker, other.has_worker.is_set()) == ("worker-0", False)
    pool.keep("worker-0", key="")
    await kept.end()
    await other.end()


async def test_workers_that_are_alike_are_compared_with_a_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[Environment]()

    def differences(*, wanted: Environment, offered: Environment) -> list[str]:
        compared.append(offered)
        return environments.differences(wanted=wanted, offered=offered)

    monkeypatch.setattr(matching, "differences", differences)
    queue = queue_of(0, pool=ScriptedPool(environments=[ENVIRONMENT] * 1000))
    jobs = [Job(queue, key=str(number)) for number in range(20)]
    await enter(jobs)
    assert compared == [ENVIRONMENT]
    for job in jobs:
        await job.end()
    assert compared == [ENVIRONMENT], "what was found out holds as long as the workers stay as they are"


async def test_a_worker_that_gets_free_is_offered_to_each_line_and_not_to_each_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = queue_of(1)
    jobs = [Job(queue, key=str(number), tenant="ab"[number % 2]) for number in range(60)]
    await enter(jobs)
    offered, find = list[str](), Offers.find

    def note(offers: Offers, job: ActiveJob) -> str | None:
        offered.append(job.key)
        return find(offers, job)

    monkeypatch.setattr(Offers, "find", note)
    await jobs[0].end()
    # Two lines; and once more for what is left when the worker has been given away.
    assert len(offered) <= 4
    for job in [job for job in jobs if job.task is not jobs[0].task]:
        job.task.cancel()


async def test_a_worker_that_goes_on_with_a_job_is_had_by_that_job_wherever_it_stands() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT] * 2)
    pool.keep("worker-1", key="c")
    queue = queue_of(0, pool=pool)
    jobs = [Job(queue, key=key) for key in "abc"]
    await enter(jobs)
    await jobs[2].has_worker.wait()
    assert (jobs[0].worker, jobs[2].worker) == ("worker-0", "worker-1")
    assert not jobs[1].has_worker.is_set()
    pool.keep("worker-1", key="")
    for job in (jobs[2], jobs[0], jobs[1]):
        await job.end()
