"""What torch keeps in a module: hooks, and tensors under their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

# torch/nn/modules/module.py
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def hooks_in(attributes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The hooks of a module by kind, of kinds that it has, in the order in which they are called, and how they are.

    Args:
        attributes: its `__dict__`; of an object that is no module, nothing comes of it.
    """
    return {name: list(attributes[name].values()) for name in _HOOKS if attributes.get(name)}


def tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Parameters and buffers that a module holds itself, by name; None where a name holds none."""
    yield from module._parameters.items()
    yield from module._buffers.items()
