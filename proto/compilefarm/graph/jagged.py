"""Jagged tensors as operators that graphs may call: torch's own for them believe the offsets that they are given.

They compute what the operators do, element by element, at places that are asserted
(torch/_inductor/jagged_lowerings.py lowers the operators alike, and asserts none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.graph.operators import find_operator


def decompositions() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """What the operators of jagged tensors are made of."""
    made: dict[str, Callable[..., Any]] = {
        "aten::_jagged_to_padded_dense_forward": _padded,
        "aten::_padded_dense_to_jagged_forward": _packed,
    }
    found = ((find_operator(name, is_overload=True), function) for name, function in made.items())
    return {operator: function for operator, function in found if operator is not None}


def _padded(
    values: torch.Tensor, offsets: Sequence[torch.Tensor], max_lengths: Sequence[Any], padding_value: float = 0.0
) -> Any:
    """Rows of (total, width) as (batch, length, width), with padding behind those of each batch."""
    if len(offsets) != 1 or len(max_lengths) != 1 or values.dim() != 2:
        return NotImplemented
    begin, end = offsets[0][:-1].unsqueeze(1), offsets[0][1:].unsqueeze(1)
    if values.shape[0] == 0:
        return values.new_full((begin.shape[0], max_lengths[0], values.shape[1]), padding_value)
    places = begin + torch.arange(max_lengths[0], device=values.device, dtype=begin.dtype)
    rows = values[places.clamp(max=values.shape[0] - 1)]
    return rows.masked_fill((places >= end).unsqueeze(2), padding_value)


def _packed(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: Any = None) -> Any:
    """Rows of (batch, length, width) as (total, width), without the padding; zeros where a batch has more rows."""
    if len(offsets) != 1 or dense.dim() != 3 or total_L is None:
        return NotImplemented
    places = torch.arange(total_L, device=dense.device, dtype=offsets[0].dtype)
    batches = torch.searchsorted(offsets[0], places, right=True) - 1
    within = places - offsets[0][batches]
    if dense.shape[1] == 0:
        return dense.new_zeros((total_L, dense.shape[2]))
    rows = dense[batches, within.clamp(max=dense.shape[1] - 1)]
    return rows.masked_fill((within >= dense.shape[1]).unsqueeze(1), 0)
