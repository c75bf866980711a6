"""Products with 8-bit weights that Inductor makes of other operators (torch/_inductor/fx_passes/quantization.py).

It takes what it finds for a layer, and looks at little more than dtypes. Where a graph reshapes a product otherwise, or
has other scales than one for each output, sizes are others than later nodes were checked for, or kernels of oneDNN read
beyond scales, biases and weights: they go through the memory of all of these as if it were that of a layer. What is no
layer is left to Inductor as the graph says it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from compilefarm.torch_internals.packed_layers import add_check

_TRANSPOSED = [1, 0]
_BYTES = (torch.uint8, torch.int8)


def require_linear_layers() -> None:
    """For the rest of this process, has such products made of layers alone. Before the first compile: that registers
    the patterns.
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
    add_check(quantization, _is_layer)


def _is_linear_layer(match: Any) -> bool:
    """Returns whether nodes that were matched compute a linear layer times one scale for each of its outputs."""
    x, weight, scales = (match.kwargs[name].meta["val"].shape for name in ("x", "weight", "scales"))
    result = match.output_node().meta["val"].shape
    if (len(weight), len(scales), len(result)) != (2, 1, len(x)):
        return False
    outputs, inputs = weight
    equal = [*zip(result, (*x[:-1], outputs), strict=True), (x[-1], inputs), (scales[0], outputs)]
    permuted = [node.args[1] for node in match.nodes if node.target is torch.ops.aten.permute.default]
    return _are_equal(equal) and all([dimension % 2 for dimension in each] == _TRANSPOSED for each in permuted)


def _is_layer(match: Any) -> bool:
    """Returns whether nodes compute a layer with quantized weights, where their pattern is one of such layers."""
    names = match.kwargs.keys()
    if "q_weight" in names:
        return _is_quantized_layer(match)
    return _is_product_of_bytes(match) if {"a", "b", "w_scale"} <= names else True


def _is_quantized_layer(match: Any) -> bool:
    """Returns whether they compute a linear layer or a convolution of quantized inputs, whose weights have one scale
    for each output.

    Of torch 2.11; later ones leave such patterns to torchao.
    """
    given = {name: _value_of(value) for name, value in match.kwargs.items()}
    x, weight, result = given["x"], given["q_weight"], match.output_node().meta["val"]
    outputs = weight.shape[0]
    is_one_for_each = (
        weight.dtype is torch.int8
        and x.dtype in _BYTES
        and weight.is_contiguous()
        and given["w_axis"] in (0, -weight.dim())
        and given["w_scale"].dtype is torch.float32
        and all(_is_one_for_each(given.get(name), outputs) for name in ("w_scale", "w_zp", "b"))
        and all(_is_one(given[name]) for name in ("x_scale", "x_zp"))
    )
    if "groups" in given:
        return is_one_for_each and not given["is_transposed"] and x.dim() == weight.dim()
    return (
        is_one_for_each
        and weight.dim() == 2
        and given["permute_axes"] == _TRANSPOSED
        and x.dim() == result.dim()
        and _are_equal([*zip(result.shape, (*x.shape[:-1], outputs), strict=True), (x.shape[-1], weight.shape[1])])
    )


def _is_product_of_bytes(match: Any) -> bool:
    """Returns whether they compute a product of integers whose result has one scale, and one bias, for each column."""
    given = {name: _value_of(value) for name, value in match.kwargs.items()}
    x, weight, scales, result = given["a"], given["b"], given["w_scale"], match.output_node().meta["val"]
    columns = weight.shape[1]
    fits = x.dim() == result.dim() and isinstance(scales, torch.Tensor) and scales.dim() > 0
    return (
        fits
        and scales.is_contiguous()
        and _are_equal([(scales.numel(), columns), (scales.shape[-1], columns)])
        and _is_one_for_each(given.get("bias"), columns)
        and _are_equal([*zip(result.shape, (*x.shape[:-1], columns), strict=True), (x.shape[-1], weight.shape[0])])
    )


def _value_of(given: Any) -> Any:
    return given.meta["val"] if isinstance(given, Node) else given


def _is_one(number: Any) -> bool:
    return not isinstance(number, torch.Tensor) or statically_known_true(number.numel() == 1)


def _is_one_for_each(values: Any, outputs: Any) -> bool:
    if values is None:
        return True
    is_vector = isinstance(values, torch.Tensor) and values.dim() == 1
    return is_vector and values.is_contiguous() and statically_known_true(values.shape[0] == outputs)


def _are_equal(pairs: Sequence[tuple[Any, Any]]) -> bool:
    return all(statically_known_true(one == other) for one, other in pairs)
