"""How finely dtypes say numbers, and how far two right results may be apart. Public names of torch alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# The largest difference allowed, as a share of the largest magnitude in a result. A wrong kernel is off by about all of
# it; another order of additions by much less.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def epsilon_of(dtype: torch.dtype) -> float:
    """The smallest step of a dtype."""
    epsilon: float = torch.finfo(dtype).eps
    return epsilon


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """The dtype with the largest steps among some; None where nothing floats. Floats of eight bits are what wider ones
    are rounded to, and nothing is computed in them.
    """
    floats = {dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1}
    return max(floats, key=epsilon_of, default=None)


def tolerance_of(dtype: torch.dtype) -> float:
    """The share of the largest magnitude by which results may differ that were computed in a dtype, where nothing tells
    how much of it is rounding.
    """
    return _TOLERANCES.get(dtype, epsilon_of(dtype))
