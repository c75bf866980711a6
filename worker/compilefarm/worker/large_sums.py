"""Runs a graph with the rounding of loops that add up many elements of float32, one after the other.

On processors eager adds up in pairs, and for batch norms in float64 (ATen/native/cpu/SumKernel.cpp,
ATen/native/Normalization.cpp: acc_type). Inductor's loops there add one element after the other to what a lane has:
where 32,768 equal ones are added up, as they are of the gradient behind a mean over an image, the sum is off by 110
last bits in place of one. Both are right. What such rounding leaves of a result is found out by adding it to each sum.

Of a norm in narrow floats the backward pass is given its mean and its scale, which eager keeps in float32 and torch's
decomposition rounds (torch/_decomp/decompositions.py: native_batch_norm_helper): norms are run as that says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from compilefarm.torch_internals.decompositions import decomposition_tables
from compilefarm.torch_internals.operators import HigherOrderOperator
from compilefarm.worker.reference import InsideMode, results_within
from compilefarm.worker.results import Results
from compilefarm.worker.seeds import SEED

_aten = torch.ops.aten
# Of the sums of their forward pass Inductor keeps running means, which are exact.
_NORMS = frozenset(
    {
        *("aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats"),
        *("aten::native_batch_norm_backward", "aten::native_group_norm_backward", "aten::native_layer_norm_backward"),
    }
)
# What is added up in float32.
_ADDED_UP = frozenset({torch.float32, torch.bfloat16, torch.float16})
_SUMS = frozenset({_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim})
# Fewer elements are added up as exactly as eager does it.
_MANY = 512
# The error of a sum of n elements, in last bits of the sum of their magnitudes, as a share of the root of n. Measured
# were 0.6 and 1.4 (32,768 and 1,024 elements, torch 2.15), and results may be sixteen times as far off as with this.
_SHARE_OF_ROOT = 0.25


class LargeSums(InsideMode):
    """Adds to sums of many elements of float32 what rounding may leave, each time the same.

    Attributes:
        applied: whether the graph has any, or a norm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(SEED)
        self.applied = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            args, kwargs = self.entering((args, kwargs))
        given = args[0] if args else None
        if not isinstance(given, torch.Tensor) or given.dtype not in _ADDED_UP or given.device.type != "cpu":
            return func(*args, **kwargs)
        if func.name() in _NORMS:
            # Narrow ones are widened there.
            self.applied = True
            with self:
                return decomposition_tables()["post_autograd"][func](*args, **kwargs)
        if func in _SUMS:
            result = func(*args, **kwargs)
            return self._off(result, by=lambda: func(given.abs(), *args[1:], **kwargs), elements=given.numel())
        return func(*args, **kwargs)

    def _off(self, result: torch.Tensor, *, by: Callable[[], torch.Tensor], elements: int) -> torch.Tensor:
        """A sum that is off by rounding.

        Args:
            result: the sum.
            by: gives the sum of magnitudes.
            elements: how many are added up, in all sums together.
        """
        count = elements / max(result.numel(), 1)
        if result.dtype != torch.float32 or count < _MANY:
            return result
        self.applied = True
        share = _SHARE_OF_ROOT * math.sqrt(count) * torch.finfo(result.dtype).eps
        return result + by() * torch.randn(result.shape, generator=self._generator) * share


def find_with_large_sums(run: Callable[[], Results]) -> Results | None:
    """Results of a graph whose large sums and norms are rounded so; None where it has none.

    Args:
        run: runs the graph, each time on the same inputs.
    """
    mode = LargeSums()
    results = results_within(mode, run, what="large sums")
    return results if mode.applied else None
