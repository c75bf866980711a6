"""Values that operators of libraries believe: a kernel reads, and for gradients writes, at the places that they name.

Torch's own operators assert such places. These do not: beyond a tensor they read whatever lies there, so that a check
would compare chance with chance, and an error on a GPU ends all that its process can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.operators import is_of_torch, named_arguments
from compilefarm.graph.targets import nodes_of
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet, schema_of

Arguments = Mapping[str, Any]


class OutsideOfTensor(Exception):
    """An operator was about to be given values that have it reach beyond its tensors."""


def calls_libraries(graph_module: GraphModule) -> bool:
    """Whether a graph, or one within it, calls an operator of another library than torch."""
    return any(map(_is_of_library, (node.target for node in nodes_of(graph_module))))


@contextmanager
def refusing_values_outside(graph_module: GraphModule) -> Iterator[None]:
    """Inside, no operator that is known to believe its values runs with such as would have it reach beyond its tensors.

    Args:
        graph_module: is run inside; nothing is looked at if it calls no operator of a library.

    Raises:
        OutsideOfTensor: one would have.
    """
    with _Watch() if calls_libraries(graph_module) else nullcontext():
        yield


class _Watch(OperatorMode):  # type: ignore[misc]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        find = _CHECKS.get(schema_of(func).name) if isinstance(func, OpOverload) else None
        if find is not None:
            objection = find(named_arguments(schema_of(func), args, kwargs or {}))
            if objection is not None:
                raise OutsideOfTensor(f"{func}: {objection}")
        return func(*args, **(kwargs or {}))


def _is_of_library(target: object) -> bool:
    if isinstance(target, OpOverloadPacket):
        return not is_of_torch(name_of_packet(target))
    return isinstance(target, OpOverload) and not is_of_torch(target.name())


# Kernels make integers of 32 bits of places, of how many there are in a region, and of products of these.
_FARTHEST = 2.0**13
_MOST_SAMPLES = 2**14
# The number of an image, and two corners.
_OF_REGION = 5


def _regions(given: Arguments) -> str | None:
    """Each region begins with the number of its image, and then says where it lies in it
    (torchvision/csrc/ops/cpu/roi_align_kernel.cpp and the like).
    """
    regions = given["rois"]
    if regions.dim() != 2 or regions.shape[1] != _OF_REGION:
        # Kernels of torchvision 0.26 read so many for each, whatever lies behind the first dimension.
        return f"its regions are {tuple(regions.shape)}, and each is said in {_OF_REGION} numbers"
    if given["pooled_height"] <= 0 or given["pooled_width"] <= 0:
        return "it pools to nothing, by which kernels divide"
    if not len(regions):
        return None
    return _numbers_of_images(given) or _places(given) or _numbers_of_samples(given)


def _numbers_of_images(given: Arguments) -> str | None:
    images = given["batch_size"] if "batch_size" in given else given["input"].shape[0]
    smallest, largest = torch.aminmax(given["rois"][:, 0].float().trunc())
    # What is no number is in no range.
    if smallest.item() >= 0 and largest.item() < images:
        return None
    return f"a region lies in image {smallest.item():g} or {largest.item():g} of {images}"


def _places(given: Arguments) -> str | None:
    smallest, largest = torch.aminmax(given["rois"][:, 1:].double() * given["spatial_scale"])
    if smallest.item() >= -_FARTHEST and largest.item() <= _FARTHEST:
        return None
    return f"a region reaches from {smallest.item():g} to {largest.item():g}"


def _numbers_of_samples(given: Arguments) -> str | None:
    pooled = max(given["pooled_height"], given["pooled_width"])
    samples = pooled * max(given.get("sampling_ratio", 0), 1)
    return None if samples <= _MOST_SAMPLES else f"{samples} samples are taken along a side"


def _chosen(given: Arguments) -> str | None:
    """What a forward pass has chosen, at which gradients are written: places in an image, or channels."""
    is_place = "argmax" in given
    chosen = given["argmax"] if is_place else given["channel_mapping"]
    bound = given["height"] * given["width"] if is_place else given["channels"]
    if tuple(chosen.shape) != tuple(given["grad"].shape):
        return "what was chosen is not of the shape of its gradients"
    if chosen.numel() and not (-is_place <= chosen.min().item() and chosen.max().item() < bound):
        return f"a gradient is written to place {chosen.max().item()} of {bound}"
    return None


def _gradients(given: Arguments) -> str | None:
    gradient, regions = given["grad"], given["rois"]
    wanted = (regions.shape[0], given["pooled_height"], given["pooled_width"])
    if gradient.dim() != 4 or (gradient.shape[0], *gradient.shape[2:]) != wanted:
        return "its gradients are not those of these regions"
    # Pooled by position, each place of a result has channels of its own.
    of_each = given["pooled_height"] * given["pooled_width"] if "channel_mapping" in given else 1
    if gradient.shape[1] * of_each != given["channels"]:
        return "its gradients are of another number of channels"
    has_chosen = "argmax" in given or "channel_mapping" in given
    return _regions(given) or (_chosen(given) if has_chosen else None)


def _offsets(given: Arguments) -> str | None:
    """What is no number is neither within an image nor outside (torchvision/csrc/ops/cpu/deform_conv2d_kernel.cpp).
    Where channels are left over, gradients read offsets of a group that there is not.
    """
    channels, groups = given["input"].shape[1], given["offset_groups"]
    if groups <= 0 or channels % groups:
        return f"{channels} channels are not those of {groups} groups of offsets"
    return "an offset is no number" if given["offset"].isnan().any().item() else None


_POOLINGS = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
_CHECKS: Mapping[str, Callable[[Arguments], str | None]] = {
    **dict.fromkeys((f"torchvision::{name}" for name in _POOLINGS), _regions),
    **dict.fromkeys((f"torchvision::_{name}_backward" for name in _POOLINGS), _gradients),
    **dict.fromkeys(("torchvision::deform_conv2d", "torchvision::_deform_conv2d_backward"), _offsets),
}
