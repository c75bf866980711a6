"""Modes of autograd, and what it knows of tensors, that torch has no public name for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Of the class that torch makes for the backward pass of each function: how many it has made before in this process
# (torch/autograd/function.py: FunctionMeta).
NUMBER_OF_FUNCTION = "_autograd_function_id"


def has_saved_tensors_hooks() -> bool:
    """Whether functions of the user's stand between a forward pass and the tensors that it saves."""
    # torch/_functorch/_aot_autograd/utils.py: top_saved_tensors_hooks
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def find_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a tensor is a view of, as far as autograd knows; None if of nothing."""
    # torch/_tensor.py; torch/_functorch/_aot_autograd/runtime_wrappers.py: merge_view_inputs
    return tensor._base


def count_writes(tensor: torch.Tensor) -> int:
    """How often a tensor and what shares its memory were written to, as far as autograd counts it: not by way of
    `.data`, and in inference mode not at all."""
    # torch/_tensor.py; aten/src/ATen/core/TensorBase.h: _version
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def restoring_forward_mode() -> Iterator[None]:
    """Whether this thread computes derivatives in forward mode is as before afterwards."""
    # torch/autograd/forward_ad.py: _set_fwd_grad_enabled
    is_enabled = torch._C._is_fwd_grad_enabled()
    try:
        yield
    finally:
        torch._C._set_fwd_grad_enabled(is_enabled)
