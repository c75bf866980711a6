from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


@pytest.fixture(scope="session")
def own_ray() -> None:
    """Ray has not been imported yet, and listens on this host alone."""
    from compilefarm.cluster.own_ray import keep_to_this_host

    keep_to_this_host()


@pytest.fixture(scope="session")
def cluster(own_ray: None) -> Iterator[Cluster]:
    """A Ray cluster on this host: its head takes no workers, another node has two processors."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2, num_gpus=0, resources={"worker": 2})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
