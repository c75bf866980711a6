"""Classification, detection, segmentation and operators of torchvision, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.corpus.program import Case, call
from tests.wild.program import Program, backpropagating, plainly, program_of_case, require_module

_DETECTOR = {"min_size": 64, "max_size": 96, "weights_backbone": None, "num_classes": 3}
_SEGMENTER = {"weights_backbone": None, "num_classes": 3}


def _classifier(name: str, *, size: int = 64, training: bool = False, shape: tuple[int, ...] = (3,)) -> Program:
    def build() -> Case:
        model = _model(name, num_classes=10).train(training)
        calls = [call(torch.randn(batch, *shape, size, size)) for batch in (2, 3)]
        return Case(function=model, calls=calls, use=backpropagating if training else plainly)

    return program_of_case(f"{name}, training" if training else name, build, training=training)


def _detector(name: str, **configuration: Any) -> Program:
    def build() -> Case:
        model = _model(name, **configuration).eval()
        # Of another size in a second call Dynamo of torch 2.15 computes no scale.
        calls = [call([torch.rand(3, 64, 80)]) for _ in range(2)]
        return Case(function=model, calls=calls)

    return program_of_case(name, build)


def _trained_detector() -> Case:
    model = _model("fasterrcnn_mobilenet_v3_large_320_fpn", **_DETECTOR).train()
    target = {"boxes": torch.tensor([[4.0, 4.0, 40.0, 40.0]]), "labels": torch.tensor([1])}
    return Case(function=model, calls=[call([torch.rand(3, 64, 80)], [target])], use=backpropagating)


def _segmenter(name: str, *, training: bool = False) -> Program:
    def build() -> Case:
        model = _model(name, **_SEGMENTER).train(training)
        calls = [call(torch.randn(2, 3, size, size)) for size in (64, 96)]
        return Case(function=model, calls=calls)

    return program_of_case(name, build)


def _model(name: str, **configuration: Any) -> nn.Module:
    model: nn.Module = require_module("torchvision.models").get_model(name, weights=None, **configuration)
    return model


def _operator(name: str, function: Callable[[Any], Callable[..., Any]], *shapes: tuple[int, ...]) -> Program:
    """A function around an operator of torchvision.ops."""

    def build() -> Case:
        return Case(function=function(require_module("torchvision.ops")), calls=[call(*map(torch.rand, shapes))])

    return program_of_case(name, build)


def _mixed() -> Case:
    """Images and labels, mixed by shares that are drawn before each run as every run draws them."""
    mix = require_module("torchvision.transforms.v2").MixUp(num_classes=4)
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)

    def use(function: Any, given: Any) -> Any:
        torch.manual_seed(0)
        return given.to(function)

    return Case(function=lambda *batch: mix(*batch), calls=[call(images, labels)], use=use)


def _boxes(corners: torch.Tensor) -> torch.Tensor:
    """Boxes (count, 4) in an image of 16 x 16, from numbers (count, 4) up to 1."""
    return torch.cat([corners[:, :2] * 8, 8 + corners[:, 2:] * 8], dim=1)


PROGRAMS = (
    _classifier("mobilenet_v3_small"),
    _classifier("squeezenet1_1"),
    _classifier("shufflenet_v2_x0_5"),
    _classifier("resnet18"),
    _classifier("resnet18", training=True),
    _classifier("regnet_y_400mf"),
    _classifier("swin_t"),
    _classifier("r3d_18", size=32, shape=(3, 4)),
    _detector("fasterrcnn_mobilenet_v3_large_320_fpn", **_DETECTOR),
    _detector("ssdlite320_mobilenet_v3_large", weights_backbone=None, num_classes=3),
    _detector("retinanet_resnet50_fpn", **_DETECTOR),
    program_of_case("fasterrcnn, training", _trained_detector, training=True),
    _segmenter("lraspp_mobilenet_v3_large"),
    _segmenter("deeplabv3_mobilenet_v3_large"),
    _segmenter("fcn_resnet50"),
    program_of_case("mixed images", _mixed),
    _operator(
        "losses of boxes",
        lambda ops: (
            lambda ours, theirs: (
                ops.generalized_box_iou_loss(_boxes(ours), _boxes(theirs), reduction="mean"),
                ops.sigmoid_focal_loss(ours, theirs.round(), reduction="mean"),
                ops.box_iou(_boxes(ours), _boxes(theirs)),
            )
        ),
        (6, 4),
        (6, 4),
    ),
)
