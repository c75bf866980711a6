"""A worker of the pool on Ray as the gateway has it: an actor, and the next one when that is lost."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from compilefarm.cluster.actor import Place, WorkerActor
from compilefarm.cluster.connection import node_resources
from compilefarm.cluster.settings import SlotSettings
from compilefarm.cluster.use import Use, until_first
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import WorkerView
from compilefarm.v1.admin_service_pb2 import (
    WORKER_STATE_FAILED,
    WORKER_STATE_IDLE,
    WORKER_STATE_STARTING,
)

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
# How many actors may be lost before a worker counts as one that cannot start.
_LOSSES_OF_A_START = 3


class Slot:
    """Keeps one actor alive from `open` to `close`."""

    def __init__(self, settings: SlotSettings) -> None:
        self._settings = settings
        self._view = WorkerView(
            name=settings.name,
            state=WORKER_STATE_STARTING,
            environment=None,
            environment_name=settings.environment_name,
        )
        self._actor: Any = None
        self._attempted = asyncio.Event()
        self._losses = 0
        self._keeping: asyncio.Task[None] | None = None
        self._use = Use(settings.idle_seconds)

    def open(self) -> None:
        """Asks Ray for an actor, at once or when it is wanted."""
        self._keeping = asyncio.create_task(self._keep())
        if self._settings.idle_seconds is not None:
            self._attempted.set()

    def want(self) -> None:
        """Hears that a job waits for the worker."""
        self._use.note()

    def in_use(self) -> AbstractContextManager[None]:
        """Lasts while the worker has a job."""
        return self._use.held()

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

    def view(self) -> WorkerView:
        """The state of the worker as far as it is known here."""
        if self._actor is None and self._view.state == WORKER_STATE_IDLE:
            return replace(self._view, state=WORKER_STATE_STARTING)
        return self._view

    def actor(self) -> Any:
        """The handle of the actor.

        Raises:
            WorkerLost: there is none at the moment.
        """
        if self._actor is None:
            raise WorkerLost(f"worker {self._settings.name} has gone away")
        return self._actor

    async def _keep(self) -> None:
        while True:
            await self._use.begun()
            # What it compiles for is remembered, so that jobs go on waiting for it.
            self._view = replace(self._view, state=WORKER_STATE_STARTING, problem=None, is_warm=False, host="", node="")
            try:
                is_over = await until_first(self._live(), self._use.over())
            except RayError as error:
                self._note_loss(error)
                is_over = False
            if not is_over:
                await asyncio.sleep(self._settings.restart_seconds)

    async def _live(self) -> None:
        """Lasts as long as an actor does, or until it turns out that there is none."""
        actor = _made(self._settings)
        try:
            place = await self._placed(actor)
            try:
                await self._follow(actor, place)
            finally:
                self._actor = None
                await _close(actor)
        finally:
            ray.kill(actor)

    async def _follow(self, actor: Any, place: Place) -> None:
        problem = _differences(place) or await actor.start.remote()
        if problem is not None:
            self._fail(problem)
            return
        self._actor = actor
        log.info("worker %s runs on %s (node %s)", self._settings.name, place.host, place.node)
        async for view in actor.views.options(num_returns="streaming").remote():
            self._see(await view, place)

    async def _placed(self, actor: Any) -> Place:
        asked = actor.place.remote()
        try:
            async with asyncio.timeout(self._settings.patience_seconds):
                soon: Place = await asked
                return soon
        except TimeoutError:
            self._wait(await asyncio.to_thread(_waits_for, self._settings.resources))
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
        self._view = replace(view, name=self._settings.name, host=place.host, node=place.node)
        if view.state != WORKER_STATE_STARTING:
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


def _made(settings: SlotSettings) -> Any:
    others = {name: amount for name, amount in settings.resources.items() if name not in ("CPU", "GPU")}
    options = {
        "num_cpus": settings.resources.get("CPU", 0),
        "num_gpus": settings.resources.get("GPU", 0),
        "resources": others,
        # What is lost the gateway tries elsewhere, and it counts.
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "SPREAD",
    }
    return ray.remote(WorkerActor).options(**options).remote(settings.make_pool)


async def _close(actor: Any) -> None:
    """Ends the processes of a worker one by one. Those of one that cannot be reached end with it."""
    try:
        await asyncio.wait_for(actor.close.remote(), timeout=_CLOSE_SECONDS)
    except (RayError, TimeoutError) as error:
        log.info("an actor has not closed its worker: %s", cause_of(error) or "it does not answer")


def _differences(place: Place) -> str | None:
    own = importlib.metadata.version("compilefarm")
    if place.version == own:
        return None
    return f"{place.host} has Compilefarm {place.version}, the gateway {own}: install the same on all nodes"


def _waits_for(wanted: Mapping[str, float]) -> str:
    has = [", ".join(f"{kind} {node.get(kind, 0):g}" for kind in wanted) for node in node_resources()]
    nodes = "; ".join(sorted(set(has))) or "none"
    needs = ", ".join(f"{kind} {amount:g}" for kind, amount in wanted.items())
    return f"waits for a node that has {needs} to spare; what nodes have in all, used or not: {nodes}"
