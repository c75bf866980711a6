"""A worker of the pool on Ray as the gateway has it: an actor, and the next one when that is lost."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError

from compilefarm.cluster.actor import MakePool, Place, WorkerActor
from compilefarm.cluster.connection import node_resources
from compilefarm.core.errors import WorkerLost
from compilefarm.core.pool import WorkerView
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_STARTING

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
# How many actors may be lost before a worker counts as one that cannot start.
_LOSSES_OF_A_START = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """A worker that Ray is asked for.

    Attributes:
        name: unique in the pool.
        environment_name: what the operator calls its environment.
        make_pool: makes its pool of one slot, on the node.
        resources: what it takes of a node, by the names of Ray (CPU, GPU).
        restart_seconds: how long to wait before Ray is asked for another actor.
        patience_seconds: how long Ray may look for a node before the worker counts as failed; it goes on looking.
    """

    name: str
    environment_name: str
    make_pool: MakePool
    resources: Mapping[str, float]
    restart_seconds: float = 5.0
    patience_seconds: float = 30.0


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

    def open(self) -> None:
        """Asks Ray for an actor."""
        self._keeping = asyncio.create_task(self._keep())

    async def attempted(self) -> None:
        """Returns when the worker has become ready or has failed."""
        await self._attempted.wait()

    async def close(self) -> None:
        """Ends the actor and the processes of its worker."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    def view(self) -> WorkerView:
        """The state of the worker as far as it is known here."""
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
            try:
                await self._live()
            except RayError as error:
                self._note_loss(error)
            await asyncio.sleep(self._settings.restart_seconds)
            # What it compiles for is remembered, so that jobs go on waiting for it.
            self._view = replace(self._view, state=WORKER_STATE_STARTING, problem=None, is_warm=False, host="", node="")

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
            self._fail(await asyncio.to_thread(_waits_for, self._settings.resources))
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
