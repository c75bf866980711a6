"""Tensors that are results of operators, as far as autograd is concerned: what is done to them in place is tracked.

To a leaf that requires gradients autograd lets nothing be done in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# Where gradients of a tensor end that `as_result` made.
_LEAF = "compilefarm_leaf"


@dataclass(frozen=True, slots=True)
class _Held:
    """Hides a tensor from autograd, which would take an input that is returned for a view."""

    tensor: torch.Tensor


class _Result(torch.autograd.Function):  # type: ignore[misc]  # torch has no types there
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, held: _Held) -> torch.Tensor:
        del ctx, leaf
        return held.tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0], None


def is_result(tensor: torch.Tensor) -> bool:
    """Whether an operator that gradients flow through has made a tensor."""
    return bool(tensor.requires_grad and not tensor.is_leaf)


def as_result(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor as the result of an operator; its gradients end in `leaf_of` it.

    Args:
        tensor: a leaf that owns its memory. It requires gradients afterwards.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = tensor.detach().requires_grad_()
        result: torch.Tensor = _Result.apply(leaf, _Held(tensor.detach()))
    setattr(result, _LEAF, leaf)
    return result


def leaf_of(tensor: torch.Tensor) -> torch.Tensor:
    """Where gradients of a tensor end: itself if it is a leaf."""
    leaf: torch.Tensor = getattr(tensor, _LEAF, tensor)
    return leaf
