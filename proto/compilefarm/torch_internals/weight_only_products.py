"""Products with 8-bit weights that Inductor makes of a product with converted weights and a multiplication by scales
(torch/_inductor/fx_passes/quantization.py).

It looks at dtypes alone, and takes what lies between for a linear layer. Where a graph reshapes the product otherwise,
the result has other sizes than later nodes were checked for, and is read beyond its end; where it permutes the weights
otherwise, it is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

_TRANSPOSED = [1, 0]


def require_linear_layers() -> None:
    """For the rest of this process, has such products made of linear layers alone. Before the first compile: that
    registers the patterns.
    """
    quantization: Any = importlib.import_module("torch._inductor.fx_passes.quantization")
    original = quantization._is_valid_woq_optimization_pattern
    if getattr(original, "compilefarm", False):
        return

    def make_check() -> Callable[[Any], bool]:
        is_valid = original()
        return lambda match: is_valid(match) and _is_linear_layer(match)

    make_check.compilefarm = True  # type: ignore[attr-defined]
    quantization._is_valid_woq_optimization_pattern = make_check


def _is_linear_layer(match: Any) -> bool:
    """Returns whether nodes that were matched compute a linear layer times one scale for each of its outputs."""
    x, weight, scales = (match.kwargs[name].meta["val"].shape for name in ("x", "weight", "scales"))
    result = match.output_node().meta["val"].shape
    if (len(weight), len(scales), len(result)) != (2, 1, len(x)):
        return False
    outputs, inputs = weight
    equal = [*zip(result, (*x[:-1], outputs), strict=True), (x[-1], inputs), (scales[0], outputs)]
    permuted = [node.args[1] for node in match.nodes if node.target is torch.ops.aten.permute.default]
    return all(statically_known_true(one == other) for one, other in equal) and all(
        [dimension % 2 for dimension in dimensions] == _TRANSPOSED for dimensions in permuted
    )
