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


PROGRAMS = (
    _model("test_resnet"),
    _model("test_vit", size=160),
    _model("test_efficientnet"),
    _model("test_convnext"),
    _model("test_byobnet"),
    _model("test_mambaout", size=160),
    _model("test_nfnet", size=96),
    _model("test_resnet", training=True),
)
