"""Programs with collectives on a worker: made for a group of which there is one process, and checked in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.process_groups import register_collectives, registered_group
from compilefarm.v1.graph_pb2 import Graph, ProcessGroup
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.process_groups import RankAsked, make_group, recording_calls, standing_in

from .verifying import checked, encoded_of

collectives = torch.ops._c10d_functional
NAME = "compilefarm_group_0_of_3"


@pytest.fixture(autouse=True)
def group() -> Iterator[Any]:
    register_collectives()
    mine, theirs = make_group(3), make_group(3)
    with registered_group("mine", mine), registered_group(NAME, theirs):
        yield theirs
    torch.compiler.reset()


def _whole(x: torch.Tensor, group: str = NAME) -> dict[str, torch.Tensor]:
    wait = collectives.wait_tensor
    return {
        "sum": wait(collectives.all_reduce(x, "sum", group)),
        "average": wait(collectives.all_reduce(x, "avg", group)),
        "scattered": wait(collectives.reduce_scatter_tensor(x, "sum", 3, group)),
        "gathered": wait(collectives.all_gather_into_tensor(x, 3, group)),
        "from the last": wait(collectives.broadcast(x, 2, group)),
        "exchanged": wait(collectives.all_to_all_single(x, [2, 1, 0], [1, 1, 1], group)),
    }


def test_the_others_hold_what_this_process_holds() -> None:
    x = torch.arange(6.0).view(3, 2)
    results = _whole(x)
    torch.testing.assert_close(results["sum"], 3 * x)
    torch.testing.assert_close(results["average"], x)
    torch.testing.assert_close(results["scattered"], 3 * x[:1])
    # It matters from whom each part is.
    assert results["gathered"].tolist() == [[0, 1], [2, 3], [4, 5], [5, 0], [1, 2], [3, 4], [4, 5], [0, 1], [2, 3]]
    assert results["from the last"].tolist() == [[4, 5], [0, 1], [2, 3]]
    assert results["exchanged"].tolist() == [[0, 1], [0, 1], [1, 0]]


def test_groups_of_a_request_are_there_while_it_is_worked_on() -> None:
    x = torch.ones(2)
    with standing_in(Graph(process_groups=[ProcessGroup(size=4), ProcessGroup(size=2)])):
        result = collectives.wait_tensor(collectives.all_reduce(x, "sum", "compilefarm_group_1_of_2"))
    assert result.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="compilefarm_group_1_of_2"):
        collectives.all_reduce(x, "sum", "compilefarm_group_1_of_2")


def test_whoever_asks_for_a_rank_is_told_that_there_is_none(group: Any) -> None:
    with pytest.raises(RankAsked):
        group.rank()


def _both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wait = collectives.wait_tensor
    return wait(collectives.all_reduce(x.sin(), "sum", "mine")), wait(collectives.all_reduce(x[:1], "max", "mine"))


def test_a_program_calls_the_collectives_of_its_graph_in_their_order() -> None:
    encoded = encoded_of(_both, torch.ones(3, 2))
    assert checked(encoded, lambda graph_module: graph_module).compared == 3

    def swapped(x: torch.Tensor) -> list[torch.Tensor]:
        second = collectives.wait_tensor(collectives.all_reduce(x[:1], "max", NAME))
        return [collectives.wait_tensor(collectives.all_reduce(x.sin(), "sum", NAME)), second]

    with pytest.raises(VerificationFailed, match="in another order"):
        checked(encoded, lambda _: swapped)


def test_a_program_that_reduces_otherwise_is_refused() -> None:
    def other(x: torch.Tensor) -> list[torch.Tensor]:
        wait = collectives.wait_tensor
        return [wait(collectives.all_reduce(x.sin(), "avg", NAME)), wait(collectives.all_reduce(x[:1], "max", NAME))]

    with pytest.raises(VerificationFailed):
        checked(encoded_of(_both, torch.ones(3, 2)), lambda _: other)


def test_calls_are_recorded_by_kind_and_shape() -> None:
    with recording_calls() as calls:
        _whole(torch.ones(3, 2))
    assert [call[0] for call in calls] == ["reduce", "reduce", "reduce", "gather", "broadcast", "exchange"]
