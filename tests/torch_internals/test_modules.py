"""Canaries of torch_internals/modules.py."""

from __future__ import annotations

import torch

from compilefarm.torch_internals.modules import hooks_in, tensors_of


def test_hooks_are_found_by_kind() -> None:
    module = torch.nn.Linear(2, 2)
    assert hooks_in(vars(module)) == {}
    module.register_forward_hook(print)
    module.register_forward_pre_hook(repr)
    module.register_full_backward_hook(len)
    assert [hook for hooks in hooks_in(vars(module)).values() for hook in hooks] == [print, repr, len]


def test_a_module_has_its_own_tensors_and_names_without_one() -> None:
    module = torch.nn.BatchNorm1d(2, affine=False)
    names = [name for name, _ in tensors_of(torch.nn.Sequential(module)[0])]
    assert names == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert dict(tensors_of(module))["weight"] is None
