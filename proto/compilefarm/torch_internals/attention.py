"""In which order torch tries backends of attention, by their numbers in torch.nn.attention.SDPBackend."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def priority_order() -> list[int]:
    """The order of this process. A GPU settles it at the first choice."""
    # torch/csrc/Module.cpp; torch/nn/attention/__init__.py: sdpa_kernel
    order: list[int] = torch._C._get_sdp_priority_order()
    return order


def set_priority_order(order: Sequence[int]) -> None:
    """Sets what `priority_order` tells."""
    torch._C._set_sdp_priority_order(list(order))


def choose_backend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """The backend that torch would take for these.

    Raises:
        RuntimeError: none is enabled that takes them.
    """
    # aten/src/ATen/native/transformers/attention.cpp: _fused_sdp_choice
    return int(torch._fused_sdp_choice(query, key, value))
