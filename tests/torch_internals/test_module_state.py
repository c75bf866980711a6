"""Canaries of torch_internals/module_state.py."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_pre_hook

from compilefarm.torch_internals.module_state import (
    HOOKS,
    children_of,
    global_hooks,
    hooks_of,
    hooks_of_tensor,
    own_attributes,
    tensors_of,
)


def hook(*_: object) -> None:
    """Does nothing."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.zeros(2))
        self.own = 3


def test_a_module_keeps_its_children_tensors_and_attributes_where_they_are_looked_for() -> None:
    model = Model()
    state = vars(model)
    assert dict(children_of(state)) == dict(model.named_children())
    assert [name for name, _ in tensors_of(state)] == ["weight", "offset"]
    model.compile(backend="eager")
    assert dict(own_attributes(state)) == {"own": 3}


def test_every_hook_that_a_call_runs_is_found() -> None:
    model = Model()
    assert list(hooks_of(vars(model))) == []
    model.register_forward_pre_hook(hook)
    model.register_forward_hook(hook, with_kwargs=True, always_call=True)
    model.register_full_backward_hook(hook)
    model.register_full_backward_pre_hook(hook)
    model.register_state_dict_post_hook(hook)
    kinds = [kind for kind, _ in hooks_of(vars(model))]
    assert set(kinds) == set(HOOKS) - {"_forward_pre_hooks_with_kwargs"}
    assert len(kinds) == 6


def test_hooks_of_all_modules_are_found() -> None:
    handles = [register_module_forward_hook(hook), register_module_full_backward_pre_hook(hook)]
    try:
        assert list(global_hooks()) == [("_global_forward_hooks", hook), ("_global_backward_pre_hooks", hook)]
    finally:
        for handle in handles:
            handle.remove()
    assert list(global_hooks()) == []


def test_hooks_of_tensors_are_found() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert list(hooks_of_tensor(weight)) == []
    weight.register_hook(hook)
    weight.register_post_accumulate_grad_hook(hook)
    assert [found for _, found in hooks_of_tensor(weight)] == [hook, hook]
