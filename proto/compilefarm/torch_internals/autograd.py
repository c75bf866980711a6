"""Modes of autograd that torch has no public name for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def has_saved_tensors_hooks() -> bool:
    """Whether functions of the user's stand between a forward pass and the tensors that it saves."""
    # torch/_functorch/_aot_autograd/utils.py: top_saved_tensors_hooks
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@contextmanager
def restoring_forward_mode() -> Iterator[None]:
    """Whether this thread computes derivatives in forward mode is as before afterwards."""
    # torch/autograd/forward_ad.py: _set_fwd_grad_enabled
    is_enabled = torch._C._is_fwd_grad_enabled()
    try:
        yield
    finally:
        torch._C._set_fwd_grad_enabled(is_enabled)
