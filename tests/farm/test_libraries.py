"""Operators of installed libraries, at a farm that was told nothing of them."""

from __future__ import annotations

import pytest
import torch

from compilefarm.client import Farm, stats

from .serving import ServedFarm

pytestmark = pytest.mark.compiles


def test_regions_of_a_detector_are_pooled(farm: ServedFarm) -> None:
    ops = pytest.importorskip("torchvision.ops")

    def pooled(features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = ops.roi_align(features.relu(), [boxes * 2], 3, aligned=True)
        return pooled + 1

    features, boxes = torch.randn(1, 4, 16, 16), torch.tensor([[0.0, 0.0, 3.0, 4.0], [1.0, 2.0, 6.0, 7.0]])
    before = len(stats())
    compiled = torch.compile(pooled, backend=Farm(farm.address).backend, fullgraph=True)
    torch.testing.assert_close(compiled(features, boxes), pooled(features, boxes))
    assert [(record.outcome, record.reason) for record in stats()[before:]] == [("compiled", "")]
