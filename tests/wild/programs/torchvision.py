"""Classification, detection and segmentation of torchvision, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from tests.corpus.program import Case, call
from tests.wild.program import Program, program_of_case, require_module


def _classifier(name: str, *, size: int = 64, **configuration: Any) -> Program:
    def build() -> Case:
        models = require_module("torchvision.models")
        model = models.get_model(name, weights=None, num_classes=10, **configuration).eval()
        return Case(function=model, calls=[call(torch.randn(batch, 3, size, size)) for batch in (2, 3)])

    return program_of_case(name, build)


PROGRAMS = (
    _classifier("mobilenet_v3_small"),
    _classifier("squeezenet1_1"),
    _classifier("shufflenet_v2_x0_5"),
)
