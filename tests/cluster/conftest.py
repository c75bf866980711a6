"""A Ray cluster for the tests of this folder, which ends with the last of them: Ray's processes never rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

_UNTIL_LAST_TEST = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After what the test had for itself has ended."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _UNTIL_LAST_TEST.close()


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
    # The last thing first.
    _UNTIL_LAST_TEST.callback(made.shutdown)
    _UNTIL_LAST_TEST.callback(ray.shutdown)
    made.add_node(num_cpus=2, num_gpus=0, resources={"worker": 2})
    yield made
    # Where the tests were ended early.
    _UNTIL_LAST_TEST.close()


def started_cluster() -> Cluster:
    """A cluster of a head alone; tried twice, since Ray's own start was seen to fail.

    Once in some hundred starts the head's raylet (2.60) ended before it opened its log, and Ray gave up after its
    30 seconds. That is not what these tests are about. What the first head left ends with this process.
    """
    from ray.cluster_utils import Cluster

    # Nobody reads here what workers print.
    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "include_log_monitor": False}
    try:
        return Cluster(initialize_head=True, head_node_args=head)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        return Cluster(initialize_head=True, head_node_args=head)
