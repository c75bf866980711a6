"""Gradients that a graph of AOTAutograd calls by name, as graphs may call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compilefarm.graph.operators import base_of, find_operator
from compilefarm.torch_internals.operators import OpOverload, schema_of

# Those of maxima, whose kernels believe the places that they are given, by how many of the last dimensions a plane has.
_PLANES = {
    "adaptive_max_pool2d_backward": 2,
    "adaptive_max_pool3d_backward": 3,
    "fractional_max_pool2d_backward": 2,
    "fractional_max_pool3d_backward": 3,
    "max_pool2d_with_indices_backward": 2,
    "max_pool3d_with_indices_backward": 3,
}


def decompositions() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """What gradients of maxima are made of.

    Each is added at the place of its plane where the maximum was found, by an operator that checks places
    (torch/_decomp/decompositions.py of torch 2.15 does the same for max_pool2d_with_indices_backward). Inductor's
    programs remember places within windows alone, and compiled autograd makes places of planes of these.
    """
    made: dict[str, Callable[..., Any]] = {
        f"aten::{name}": partial(_added, spatial=spatial) for name, spatial in _PLANES.items()
    }
    made["prims::_low_memory_max_pool_offsets_to_indices"] = _places
    found = {find_operator(name, is_overload=True): decomposition for name, decomposition in made.items()}
    return {operator: decomposition for operator, decomposition in found.items() if operator is not None}


def _added(grad_output: torch.Tensor, self: torch.Tensor, *given: Any, spatial: int, **named: Any) -> torch.Tensor:
    """The gradient of the input. How windows lie decides nothing: the places do, which come last."""
    places = named["indices"] if "indices" in named else given[-1]
    # Many may come together at one place.
    exact = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else self.dtype
    zeros = self.new_zeros((*self.shape[:-spatial], self.shape[-spatial:].numel()), dtype=exact)
    summed = zeros.scatter_add(-1, places.flatten(-spatial), grad_output.to(exact).flatten(-spatial))
    return summed.view(self.shape).to(self.dtype)


def _places(
    self: torch.Tensor,
    kernel_size: Sequence[int],
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """Places in planes, of places within windows (torch/_inductor/inductor_prims.py)."""
    places, left = torch.zeros_like(self, dtype=torch.int64), self.to(torch.int64)
    factor = 1
    for dimension in reversed(range(-len(kernel_size), 0)):
        shape = [1] * self.dim()
        shape[dimension] = -1
        windows = torch.arange(self.shape[dimension], device=self.device).view(shape)
        within = left % kernel_size[dimension]
        places = places + factor * (windows * stride[dimension] - padding[dimension] + within * dilation[dimension])
        left, factor = left // kernel_size[dimension], factor * input_size[dimension]
    return places


def leave_out_scales(traced: GraphModule) -> None:
    """Leaves out by what an image was enlarged where its sizes say the same: a graph may not give both.

    Args:
        traced: a graph as AOTAutograd made it, with values noted beside nodes.
    """
    for node in traced.graph.nodes:
        name = base_of(node.target.name()) if isinstance(node.target, OpOverload) else ""
        if "upsample_" not in name or "backward" not in name:
            continue
        declared = [argument.name for argument in schema_of(node.target).arguments]
        given = dict(zip(declared, node.args, strict=False)) | node.kwargs
        scales = {argument: scale for argument, scale in given.items() if argument.startswith("scale")}
        if _agree(given["output_size"], given["input_size"][2:], [*scales.values()]):
            node.args = tuple(given[argument] for argument in declared if argument in given and argument not in scales)
            node.kwargs = {}


def _agree(output: Sequence[Any], image: Sequence[Any], scales: Sequence[Any]) -> bool:
    """Whether an image is enlarged by whole numbers, and which is known."""
    if len(scales) != len(output) or not all(type(scale) is float and scale.is_integer() for scale in scales):
        return False
    sides = zip(output, image, scales, strict=True)
    # Comparisons put guards on symbols.
    return all(bool(_value(before) * int(scale) == _value(after)) for after, before, scale in sides)


def _value(size: Any) -> Any:
    return size.meta["val"] if isinstance(size, Node) else size
