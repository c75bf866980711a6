"""What Ray is asked for. This module does not import Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compilefarm.core.pool import Toolchains, WorkerPool

# Makes the pool of a slot, given among how many slots its node is shared, and what is known of C++ compilers.
MakePool = Callable[[int, Toolchains], WorkerPool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """A worker that Ray is asked for.

    Attributes:
        name: unique in the pool.
        environment_name: what the operator calls its environment.
        make_pool: makes its pool of one slot, on the node.
        resources: what it takes of a node, by the names of Ray (CPU, GPU).
        restart_seconds: how long to wait before Ray is asked for another actor.
        patience_seconds: how long Ray may look for a node before it is said what is missing; it goes on looking.
        nodes_come: whether nodes may join the cluster for it. Where none will, a worker without a place has failed.
        idle_seconds: after how long without a job the actor ends, until a job waits for it; None: it stays.
        owner: a name of the gateway that it has again when it starts again, and then finds its actors; empty: actors
            end with the gateway.
        lifetime_seconds: how long an actor that has an owner goes on without it.
    """

    name: str
    environment_name: str
    make_pool: MakePool
    resources: Mapping[str, float]
    restart_seconds: float = 5.0
    patience_seconds: float = 30.0
    nodes_come: bool = False
    idle_seconds: float | None = None
    owner: str = ""
    lifetime_seconds: float = 60.0
