"""A worker of the pool on Ray as the gateway has it: an actor, and the next one when that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from compilefarm.cluster.actor import Place
from compilefarm.cluster.actors import make_actor
from compilefarm.cluster.places import missing_place
from compilefarm.cluster.reservation import Reservation
from compilefarm.cluster.settings import SlotSettings
from compilefarm.cluster.use import Use, until_first
from compilefarm.cluster.wishes import granting_wishes
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import Assignment, Toolchains, WorkerView
from compilefarm.core.starts import StartClock, start_words
from compilefarm.v1.admin_service_pb2 import (
    WORKER_STATE_FAILED,
    WORKER_STATE_IDLE,
    WORKER_STATE_STARTING,
)

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
# How much of the notice of a node is left for the end of the worker, when its job has not ended by itself.
_SHARE_OF_NOTICE = 1 / 4
# How many actors may be lost before a worker counts as one that cannot start.
_LOSSES_OF_A_START = 3


class Slot:
    """Keeps one actor alive from `open` to `close`.

    Args:
        settings: of the worker.
        toolchains: what is known of C++ compilers, for actors that start.
    """

    def __init__(self, settings: SlotSettings, *, toolchains: Toolchains) -> None:
        self._settings = settings
        self._toolchains = toolchains
        self._clock = StartClock()
        self._view = WorkerView(
            name=settings.name,
            state=WORKER_STATE_STARTING,
            environment=None,
            environment_name=settings.environment_name,
        )
        self._found: Any = None
        self._actor: Any = None
        self._reservation = Reservation()
        self._attempted = asyncio.Event()
        self._losses = 0
        self._keeping: asyncio.Task[None] | None = None
        self._use = Use(settings.idle_seconds)
        self._drain: asyncio.Future[float] | None = None

    def open(self, found: Any = None) -> None:
        """Asks Ray for an actor, at once or when it is wanted.

        Args:
            found: the actor of a gateway before this one, if there is one; then nothing is asked for.
        """
        self._found = found
        self._keeping = asyncio.create_task(self._keep())
        if found is not None:
            self._use.note()
        elif self._settings.idle_seconds is not None:
            self._attempted.set()

    def want(self) -> None:
        """Hears that a job waits for the worker."""
        self._use.note()

    def in_use(self) -> AbstractContextManager[None]:
        """Lasts while the worker has a job."""
        return self._use.held()

    def take_kept(self, assignment: Assignment) -> str | None:
        """The name of the work that the worker does for an assignment already; None if it does none."""
        return self._reservation.take(assignment)

    def drain(self, until_seconds: float) -> None:
        """Hears that the node of the actor goes. The job that it has may end within the notice; there is no other.

        Args:
            until_seconds: when the node goes, since 1970; 0: it waits for the job.
        """
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(until_seconds)

    async def attempted(self) -> None:
        """Returns when the worker has become ready or has failed."""
        await self._attempted.wait()

    async def close(self) -> None:
        """Ends the actor and the processes of its worker."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    @property
    def is_absent(self) -> bool:
        """Whether there is no actor, and none is asked for, before the worker is wanted."""
        return not self._use.is_wanted

    @property
    def is_starting(self) -> bool:
        """Whether an actor is asked for and has no worker yet."""
        return self.view().state == WORKER_STATE_STARTING and not self.is_absent

    @property
    def node(self) -> str:
        """Ray's id of the node that the actor is on; empty while there is none."""
        return self._view.node

    def view(self) -> WorkerView:
        """The state of the worker as far as it is known here."""
        if self._view.state == WORKER_STATE_IDLE and (self._actor is None or self._is_draining):
            return replace(self._view, state=WORKER_STATE_STARTING)
        is_said = self._view.kept_for == self._reservation.key
        return self._view if is_said else replace(self._view, kept_for=self._reservation.key)

    def actor(self) -> Any:
        """The handle of the actor.

        Raises:
            WorkerLost: there is none at the moment.
        """
        if self._actor is None:
            raise WorkerLost(f"worker {self._settings.name} has gone away")
        return self._actor

    @property
    def _is_draining(self) -> bool:
        return self._drain is not None and self._drain.done()

    async def _keep(self) -> None:
        while True:
            await self._use.begun()
            # What it compiles for is remembered, so that jobs go on waiting for it.
            self._view = replace(self._view, state=WORKER_STATE_STARTING, problem=None, is_warm=False, host="", node="")
            self._drain = asyncio.get_running_loop().create_future()
            try:
                is_over = await until_first(self._live(), self._over(self._drain))
            except RayError as error:
                self._note_loss(error)
                is_over = False
            if not is_over:
                await asyncio.sleep(self._settings.restart_seconds)

    async def _over(self, drain: asyncio.Future[float]) -> None:
        """Returns when the actor is to end: nobody has wanted it for long enough, or its node goes."""
        await until_first(self._use.over(), self._drained(drain))

    async def _drained(self, drain: asyncio.Future[float]) -> None:
        """Returns when the node goes, and the job has ended or its time is over."""
        until_seconds = await drain
        notice_seconds = until_seconds - time.time() if until_seconds else None
        log.info("worker %s: its node %s goes; the next one is asked for", self._settings.name, self.node)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(notice_seconds and _for_the_job(notice_seconds)):
                await self._use.free()

    async def _live(self) -> None:
        """Lasts as long as an actor does, or until it turns out that there is none."""
        found, self._found = self._found, None
        self._clock = StartClock()
        actor = found or make_actor(self._settings)
        try:
            place = await self._placed(actor)
            self._clock.end("node")
            try:
                async with granting_wishes(actor, self._toolchains):
                    await self._follow(actor, place, is_found=found is not None)
            finally:
                self._actor = None
                await _close(actor)
        finally:
            ray.kill(actor)

    async def _follow(self, actor: Any, place: Place, *, is_found: bool) -> None:
        problem = _differences(place) or await actor.start.remote()
        if problem is not None:
            self._fail(problem)
            return
        kept = await actor.adopt.remote() if is_found else None
        self._actor = actor
        log.info("worker %s runs on %s (node %s)", self._settings.name, place.host, place.node)
        with self._reservation.of(kept, actor=actor, use=self._use, seconds=self._settings.lifetime_seconds):
            await self._look(actor, place)

    async def _look(self, actor: Any, place: Place) -> None:
        view: WorkerView | None = None
        while True:
            view = await actor.look.remote(view)
            self._see(view, place)

    async def _placed(self, actor: Any) -> Place:
        asked = actor.place.remote()
        try:
            async with asyncio.timeout(self._settings.patience_seconds):
                soon: Place = await asked
                return soon
        except TimeoutError:
            self._wait(await asyncio.to_thread(missing_place, self._settings.resources))
        late: Place = await asked
        return late

    def _note_loss(self, error: RayError) -> None:
        """Notes that an actor is gone. One that was never ready may have met a node on its way out."""
        self._losses += 1
        problem = f"its actor was lost: {cause_of(error)}"
        if self._losses >= _LOSSES_OF_A_START or self._attempted.is_set():
            self._fail(problem)
        else:
            log.warning("worker %s: %s", self._settings.name, problem)

    def _see(self, view: WorkerView, place: Place) -> None:
        start = (*self._clock.phases, *view.start) if view.start else ()
        self._view = replace(view, name=self._settings.name, host=place.host, node=place.node, start=start)
        if view.state == WORKER_STATE_STARTING:
            return
        if not self._attempted.is_set() and start:
            log.info("worker %s ready after %s", self._settings.name, start_words(start))
        self._attempted.set()

    def _wait(self, problem: str) -> None:
        if not self._settings.nodes_come:
            self._fail(problem)
            return
        log.info("worker %s %s", self._settings.name, problem)
        self._view = replace(self._view, problem=problem)
        self._attempted.set()

    def _fail(self, problem: str) -> None:
        log.warning("worker %s: %s", self._settings.name, problem)
        self._view = replace(self._view, state=WORKER_STATE_FAILED, problem=problem, is_warm=False)
        self._attempted.set()


def cause_of(error: Exception) -> str:
    """The line of a message of Ray that says what happened; the rest is a report of pages."""
    lines = str(error).strip().splitlines() or [""]
    # Of an actor that could not be made, the last line is what was raised on the node.
    return lines[-1 if "creation task" in lines[0] else 0].strip()[:300]


async def _close(actor: Any) -> None:
    """Ends the processes of a worker one by one. Those of one that cannot be reached end with it."""
    try:
        await asyncio.wait_for(actor.close.remote(), timeout=_CLOSE_SECONDS)
    except (RayError, TimeoutError) as error:
        log.info("an actor has not closed its worker: %s", cause_of(error) or "it does not answer")


def _for_the_job(notice_seconds: float) -> float:
    """How much of a notice a job may take to end by itself."""
    return max(0.0, notice_seconds - min(_CLOSE_SECONDS, notice_seconds * _SHARE_OF_NOTICE))


def _differences(place: Place) -> str | None:
    own = importlib.metadata.version("compilefarm")
    if place.version == own:
        return None
    return f"{place.host} has Compilefarm {place.version}, the gateway {own}: install the same on all nodes"
