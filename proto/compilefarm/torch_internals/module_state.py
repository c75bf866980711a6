"""What modules of torch.nn keep beside their class: children, parameters, buffers and hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules import module as _module  # torch/nn/modules/module.py

# Hooks of a module that its call runs, by the attribute that holds them.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
# What else torch.nn.Module.__init__ sets, and what torch adds to modules that it compiles. None of it decides a call.
_KEPT = frozenset(
    {
        *HOOKS,
        "_buffers",
        "_compiled_call_impl",
        "_is_full_backward_hook",
        "_load_state_dict_post_hooks",
        "_load_state_dict_pre_hooks",
        "_modules",
        "_non_persistent_buffers_set",
        "_parameters",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "training",
    }
)
# Hooks of all modules of the process.
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def children_of(state: Mapping[str, Any]) -> Mapping[str, torch.nn.Module | None]:
    """Submodules by name.

    Args:
        state: vars() of a module.
    """
    children: Mapping[str, torch.nn.Module | None] = state["_modules"]
    return children


def tensors_of(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Parameters, then buffers, by name."""
    yield from state["_parameters"].items()
    yield from state["_buffers"].items()


def hooks_of(state: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Hooks that a call of the module runs, by their kind and in order. Their numbers, which count all hooks of a
    process, are left out."""
    for kind in HOOKS:
        if state[kind]:
            yield from ((kind, hook) for hook in state[kind].values())


def global_hooks() -> Iterator[tuple[str, object]]:
    """Hooks that a call of any module runs, by their kind and in order."""
    for kind in _GLOBAL_HOOKS:
        yield from ((kind, hook) for hook in getattr(_module, kind).values())


def own_attributes(state: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Attributes of a module that neither torch.nn.Module nor the compiler keeps there."""
    return ((name, value) for name, value in state.items() if name not in _KEPT)


def hooks_of_tensor(tensor: torch.Tensor) -> Iterator[tuple[str, object]]:
    """Hooks of a tensor: on its gradient, and on what has been added to it."""
    # torch/_tensor.py: register_hook, register_post_accumulate_grad_hook
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from ((kind, hook) for hook in (getattr(tensor, kind) or {}).values())
