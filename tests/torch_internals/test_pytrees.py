"""Canaries of torch_internals/pytrees.py."""

from __future__ import annotations

import importlib.util

import torch

from compilefarm.torch_internals.pytrees import (
    WITH_REGISTRIES,
    OrderedSet,
    TreeSpec,
    iterate_leaves,
    map_leaves,
    map_tensors,
    tensors_in,
)


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


def test_what_torch_keeps_in_order_or_of_the_form_of_a_value_says_all_that_it_holds() -> None:
    # Told as text, and as what it holds (client/compilefarm/reuse/value_descriptions.py).
    assert list(OrderedSet([3, 1, 3])) == [3, 1]
    forms = [
        torch.utils._pytree.tree_flatten(value)[1] for value in ([1, (2,)], [1, (2,)], [1, [2]], {"a": 1}, {"b": 1})
    ]
    assert all(type(form) is TreeSpec for form in forms)
    first, *others = map(str, forms)
    assert [other == first for other in others] == [True, False, False, False]
    assert str(forms[3]) != str(forms[4])


def test_functions_that_ask_for_what_is_registered_are_of_known_modules() -> None:
    assert {iterate_leaves.__module__, map_leaves.__module__} <= WITH_REGISTRIES
    assert all(map(importlib.util.find_spec, WITH_REGISTRIES))
