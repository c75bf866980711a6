"""What detectors of torchvision compute beside layers: operators of its own, which a worker imports for a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.wild.program import Case, Program, call, program_of_case, require_module

_BOXES = torch.tensor([[0.0, 0.0, 12.0, 9.0], [3.0, 2.0, 30.0, 31.0], [1.0, 1.0, 12.0, 9.0], [10.0, 4.0, 20.0, 24.0]])


def _operator(name: str, make: Callable[[Any], Callable[..., Any]], *inputs: tuple[int, ...], **flags: Any) -> Program:
    """A program that is given boxes after tensors of some shapes."""

    def build() -> Case:
        function = make(require_module("torchvision.ops"))
        tensors = [torch.randn(shape, requires_grad=flags.get("training", False)) for shape in inputs]
        return Case(function=function, calls=[call(*tensors, _BOXES.to(torch.get_default_device()))])

    return program_of_case(name, build, **flags)


def _pooled(name: str, *size: Any, **options: Any) -> Callable[[Any], Callable[..., Any]]:
    return lambda ops: lambda features, boxes: getattr(ops, name)(features.relu(), [boxes], *size, **options) * 2


def _suppressed(ops: Any) -> Callable[..., Any]:
    def suppressed(boxes: torch.Tensor) -> torch.Tensor:
        scores = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        kept: torch.Tensor = boxes[ops.nms(boxes, scores, 0.5)] * 2
        return kept

    return suppressed


def _deformed(ops: Any) -> Callable[..., Any]:
    def deformed(features: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ops.deform_conv2d(features, offsets.tanh(), weight, padding=1)
        return result.relu()

    return deformed


_REGIONS = torch.cat([torch.tensor([[0.0], [1.0], [1.0], [0.0]]), _BOXES], dim=1)


def _of_several_images() -> Case:
    """Regions with the numbers of their images, as a graph gets them that begins behind what finds them."""
    ops = require_module("torchvision.ops")

    def pooled(features: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ops.roi_align(features.relu(), regions, 3, sampling_ratio=2)
        return result.flatten(1).tanh()

    return Case(function=pooled, calls=[call(torch.randn(2, 4, 32, 32), _REGIONS.to(torch.get_default_device()))])


PROGRAMS = (
    program_of_case("roi_align, several images", _of_several_images),
    _operator("roi_align", _pooled("roi_align", 3, aligned=True), (1, 8, 32, 32)),
    _operator("roi_align, trained", _pooled("roi_align", 3), (1, 8, 32, 32), training=True),
    _operator("roi_pool", _pooled("roi_pool", 2), (1, 8, 32, 32)),
    _operator("ps_roi_align", _pooled("ps_roi_align", 2), (1, 8, 32, 32)),
    _operator("ps_roi_pool", _pooled("ps_roi_pool", 2), (1, 8, 32, 32)),
    _operator("ps_roi_align, trained", _pooled("ps_roi_align", 2), (1, 8, 32, 32), training=True),
    _operator("nms", _suppressed),
    _operator("deform_conv2d, trained", _deformed, (1, 4, 16, 16), (1, 18, 16, 16), (6, 4, 3, 3), training=True),
    _operator("deform_conv2d", _deformed, (1, 4, 16, 16), (1, 18, 16, 16), (6, 4, 3, 3)),
)
