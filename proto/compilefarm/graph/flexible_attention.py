"""Sizes of flexible attention that contradict each other: its kernels go through all of them as the queries are.

Functions that users call check them (torch/nn/attention/flex_attention.py), and the operator does not check them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode


def find_misfit(query: Any, key: Any, value: Any, *, block_mask: Sequence[Any]) -> str | None:
    """Why these may not be combined; None if they may.

    Args:
        query: (batch, heads, length, width).
        key: the same, of another length; its heads and its batch may be shared.
        value: as the keys, of another width.
        block_mask: as BlockMask.as_tuple has it.
    """
    try:
        if not _fit(query, key, value):
            return "its queries, keys and values differ in size"
        is_held = query.device.type != "cpu" or _is_of(query, block_mask)
        return None if is_held else "its block mask is of another size than its queries"
    except GuardOnDataDependentSymNode:
        return "whether its arguments fit each other depends on elements"


def _fit(query: Any, key: Any, value: Any) -> bool:
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    is_shared = key.shape[0] in (1, query.shape[0]) and key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0
    return bool(is_shared and key.shape[:3] == value.shape[:3] and query.shape[3] == key.shape[3])


def _is_of(query: Any, block_mask: Sequence[Any]) -> bool:
    counts, entries, full_counts, full_entries = block_mask[2:6]
    # Those of the queries, of the keys, and the function of the mask.
    size = block_mask[-3]
    if size <= 0 or counts.dim() != 3 or entries.dim() != 4:
        return False
    batch, heads, rows = counts.shape
    covers = batch in (1, query.shape[0]) and heads in (1, query.shape[1]) and rows * size >= query.shape[2]
    alike = entries.shape[:3] == counts.shape and entries.stride(3) == 1 and counts.stride(2) == 1
    # Places of full blocks are computed with the strides of the others.
    full = _is_like(full_counts, counts) and _is_like(full_entries, entries)
    return bool(covers and alike and full)


def _is_like(one: Any, other: Any) -> bool:
    return one is None or bool(one.shape[:3] == other.shape[:3] and one.stride() == other.stride())
