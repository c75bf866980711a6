"""What operators compute that have no kernels for wide floats, so that a graph with them has a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    *_: object,
    **_named: object,
) -> torch.Tensor:
    """Products of groups of rows or columns, one of each group, of shape (rows, columns) or (groups, rows, columns).

    torch/_meta_registrations.py: _meta_grouped_mm_common. What lies behind the last group is zero here: nobody writes
    to it there.

    Args:
        left: (rows, inner), or (groups, rows, inner).
        right: (inner, columns), or (groups, inner, columns).
        offs: where each group ends, along the dimension that the operand without groups shares them out.
        _: a bias, which torch allows none, and the dtype of the result, which is that of the operands.
    """
    if offs is None:
        return left @ right
    groups = list(enumerate(pairwise([0, *offs.tolist()])))
    if left.dim() == right.dim() == 2:
        return torch.stack([left[:, first:last] @ right[first:last] for _, (first, last) in groups])
    result = left.new_zeros(left.shape[-2], right.shape[-1])
    for group, (first, last) in groups:
        if left.dim() == 2:
            result[first:last] = left[first:last] @ right[group]
        else:
            result[:, first:last] = left[group] @ right[:, first:last]
    return result


# By the names of operators.
WIDE_OPERATORS: Mapping[str, Callable[..., Any]] = {"aten::_grouped_mm": _grouped_product}
