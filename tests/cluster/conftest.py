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

    made = started_cluster()
    made.add_node(num_cpus=2, num_gpus=0, resources={"worker": 2})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def started_cluster() -> Cluster:
    """A cluster of a head alone; tried twice, since Ray's own start was seen to fail.

    Once in some hundred starts the head's raylet (2.60) ended before it opened its log, and Ray gave up after its
    30 seconds. That is not what these tests are about. What the first head left ends with this process.
    """
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
    try:
        return Cluster(initialize_head=True, head_node_args=head)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        return Cluster(initialize_head=True, head_node_args=head)
