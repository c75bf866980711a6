"""The actors of a gateway on its cluster: made, and found again by a gateway that has started again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import secrets
from collections.abc import Iterable
from typing import Any

import ray
from ray.util import list_named_actors

from compilefarm.cluster.actor import WorkerActor
from compilefarm.cluster.settings import SlotSettings

log = logging.getLogger(__name__)


def make_actor(settings: SlotSettings) -> Any:
    """Asks Ray for an actor, and returns its handle."""
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
    if not settings.owner:
        return ray.remote(WorkerActor).options(**options).remote(settings.make_pool)
    # A name is free again a moment after its actor was ended: each actor has one of its own.
    name = f"{_prefix(settings)}/{secrets.token_hex(8)}"
    lasting = ray.remote(WorkerActor).options(**options, name=name, lifetime="detached")
    return lasting.remote(settings.make_pool, settings.lifetime_seconds)


def find_actors(slots: Iterable[SlotSettings]) -> dict[str, Any]:
    """The actors that a gateway before this one has left, by the names of their slots. Ends those that have no slot any
    more, or another version or other settings.

    Raises:
        RayError: the cluster does not answer.
    """
    by_prefix = {_prefix(settings): settings.name for settings in slots if settings.owner}
    owners = {prefix.partition("/")[0] for prefix in by_prefix}
    found: dict[str, Any] = {}
    for name in list_named_actors():
        owner, prefix = name.partition("/")[0], name.rpartition("/")[0]
        if owner not in owners or (actor := _find(name)) is None:
            continue
        if (slot := by_prefix.get(prefix)) is not None and slot not in found:
            found[slot] = actor
        else:
            log.info("actor %s is ended: this gateway has no use for it", name)
            ray.kill(actor)
    return found


def _find(name: str) -> Any:
    try:
        return ray.get_actor(name)
    except ValueError:
        # It has ended since it was listed.
        return None


def _prefix(settings: SlotSettings) -> str:
    """Of the names of its actors; another one where anything is different that an actor was made with."""
    made_with = (settings.make_pool, settings.resources, settings.lifetime_seconds)
    content = ray.cloudpickle.dumps(made_with) + importlib.metadata.version("compilefarm").encode()
    return f"{settings.owner}/{settings.name}/{hashlib.sha256(content).hexdigest()[:16]}"
