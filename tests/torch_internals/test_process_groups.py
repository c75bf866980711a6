"""Canaries of torch_internals/process_groups.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.torch_internals import process_groups
from compilefarm.torch_internals.process_groups import (
    finished_work,
    is_asked_for_notes,
    process_group_type,
    registered_group,
    size_of_group,
)


def _group(size: int) -> Any:
    class Group(process_group_type()):  # type: ignore[misc]
        def getBackendName(self) -> str:
            return "mine"

        def allreduce(self, tensors: list[torch.Tensor], _: Any) -> Any:
            tensors[0].add_(1)
            return finished_work(tensors)

    return Group(0, size)


def test_operators_find_a_group_by_its_name() -> None:
    with registered_group("a group", _group(5)):
        assert size_of_group("a group") == 5
        result = torch.ops._c10d_functional.all_reduce(torch.zeros(2), "sum", "a group")
        assert torch.ops._c10d_functional.wait_tensor(result).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="a group"):
        size_of_group("a group")


def test_collectives_know_fake_tensors() -> None:
    process_groups.register_collectives()
    given = torch.empty(2, 3, device="meta")
    assert torch.ops._c10d_functional.all_gather_into_tensor(given, 4, "any").shape == (8, 3)


def test_notes_of_a_graph_are_told_from_compiles() -> None:
    def rank() -> bool:
        return is_asked_for_notes()

    def asks() -> bool:
        return rank()

    assert not asks()
    # torch/_dynamo/repro/after_aot.py: _extract_distributed_info
    import torch._dynamo.repro.after_aot as notes

    assert notes._extract_distributed_info is not None
    scope = {"__name__": notes.__name__, "rank": rank}
    exec("def asks(): return rank()", scope)
    assert scope["asks"]()  # type: ignore[operator]
