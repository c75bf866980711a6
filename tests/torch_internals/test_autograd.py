"""Canaries of torch_internals/autograd.py."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from compilefarm.torch_internals import traced_functions
from compilefarm.torch_internals.autograd import (
    NUMBER_OF_FUNCTION,
    count_writes,
    find_base,
    has_saved_tensors_hooks,
    restoring_forward_mode,
)


def test_hooks_on_saved_tensors_are_seen() -> None:
    assert not has_saved_tensors_hooks()
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        assert has_saved_tensors_hooks()
    assert not has_saved_tensors_hooks()


def test_forward_derivatives_are_computed_afterwards_as_before() -> None:
    switch = traced_functions.load_function(traced_functions.FORWARD_SWITCH)
    with restoring_forward_mode():
        switch(False)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert forward_ad.unpack_dual(dual * 3).tangent.tolist() == [3.0, 3.0]


def test_what_a_tensor_is_a_view_of_is_known() -> None:
    whole = torch.ones(6)
    assert find_base(whole[2:].view(2, 2)) is whole
    assert find_base(whole) is None


def test_writes_are_counted_for_all_that_share_a_memory() -> None:
    whole = torch.ones(6)
    before = count_writes(whole)
    whole[2:].mul_(2)
    assert count_writes(whole) == count_writes(whole[2:]) > before
    with torch.inference_mode():
        assert count_writes(torch.ones(2).mul_(2)) == 0


def test_functions_are_numbered() -> None:
    numbers = [vars(_made()._backward_cls)[NUMBER_OF_FUNCTION] for _ in range(2)]  # type: ignore[attr-defined]
    assert numbers[1] == numbers[0] + 1


def _made() -> type[torch.autograd.Function]:
    class Made(torch.autograd.Function):
        pass

    return Made
