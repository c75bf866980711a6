"""Image models of timm with random weights."""

from __future__ import annotations

from typing import Any

import torch

from tests.corpus.program import Case, call
from tests.wild.program import Program, backpropagating, plainly, program_of_case, require_module

_BATCHES = (2, 3)


def _model(name: str, *, size: int = 64, training: bool = False, **configuration: Any) -> Program:
    def build() -> Case:
        timm = require_module("timm")
        model = timm.create_model(name, pretrained=False, num_classes=10, **configuration).train(training)
        calls = [call(torch.randn(batch, 3, size, size)) for batch in _BATCHES]
        return Case(function=model, calls=calls, use=backpropagating if training else plainly)

    return program_of_case(f"{name}, training" if training else name, build, training=training)


def _features() -> Case:
    model = require_module("timm").create_model("test_resnet", pretrained=False, features_only=True).eval()
    return Case(function=model, calls=[call(torch.randn(2, 3, size, size)) for size in (64, 96)])


PROGRAMS = (
    _model("test_resnet"),
    _model("test_byobnet"),
    _model("test_convnext"),
    _model("test_convnext2"),
    _model("test_convnext3"),
    _model("test_efficientnet"),
    _model("test_efficientnet_evos"),
    _model("test_efficientnet_gn"),
    _model("test_efficientnet_ln"),
    _model("test_mambaout", size=160),
    _model("test_nfnet", size=96),
    _model("test_vit", size=160),
    _model("test_vit2", size=160),
    _model("test_vit4", size=160),
    _model("test_resnet", training=True),
    _model("test_vit", size=160, training=True),
    program_of_case("features of test_resnet", _features),
)
