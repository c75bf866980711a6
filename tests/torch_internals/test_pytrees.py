"""Canaries of torch_internals/pytrees.py."""

from __future__ import annotations

import torch

from compilefarm.torch_internals.pytrees import iterate_leaves, map_leaves, map_tensors, tensors_in


def test_nested_values_are_taken_apart_and_put_together() -> None:
    nested = {"a": [1, (2,)], "b": torch.Size([3])}
    assert list(iterate_leaves(nested)) == [1, 2, 3]
    assert map_leaves(lambda value: value + 1, nested) == {"a": [2, (3,)], "b": torch.Size([4])}


def test_results_of_operators_are_taken_apart() -> None:
    found = torch.ones(2, 3).max(dim=0)
    assert len(list(iterate_leaves(found))) == 2
    assert type(map_leaves(torch.clone, found)) is type(found)


def test_tensors_among_other_values_are_found_and_replaced() -> None:
    nested = {"a": [torch.ones(2), 3], "b": "text"}
    assert [tensor.shape for tensor in tensors_in(nested)] == [(2,)]
    assert map_tensors(len, nested) == {"a": [2, 3], "b": "text"}
