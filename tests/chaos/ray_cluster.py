"""A Ray cluster of this host for gateways that are killed: their workers are its actors, and outlive them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import descendants, last_descendants

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

# What a worker of tests/chaos/gateway.py takes: no processors, since it would have a share of the memory then.
WORKER_RESOURCES = {"worker": 1.0}
# For the workers of farms that were killed a moment ago, too.
_WORKERS = 64
# Of a fork server and its children (tests/chaos/gateway.py).
_CHILD = b"compilefarm.worker.testing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A head without workers, and a node for them.

    Attributes:
        address: of its head.
        node_process: the raylet of the node, from which workers descend.
    """

    address: str
    node_process: int

    def children(self) -> list[int]:
        """The children of all workers, and what they were forked from."""
        return sorted(filter(_is_child, descendants(self.node_process)))

    def last_children(self) -> list[int]:
        """Those of them that have no children themselves."""
        return sorted(filter(_is_child, last_descendants(self.node_process)))


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster, which ends with the context."""
    from compilefarm.cluster.own_ray import keep_to_this_host

    keep_to_this_host()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False})
    try:
        yield _with_node(made)
    finally:
        made.shutdown()


def _with_node(made: Cluster) -> RayCluster:
    node = made.add_node(num_cpus=0, num_gpus=0, resources={"worker": _WORKERS})
    (raylet,) = node.all_processes["raylet"]
    return RayCluster(address=made.address, node_process=raylet.process.pid)


def _is_child(pid: int) -> bool:
    try:
        return _CHILD in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # It has ended.
        return False
