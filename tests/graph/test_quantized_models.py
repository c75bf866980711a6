"""Operators of models that were quantized by way of torch.export: torch registers them in Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from compilefarm.graph.decode import decode_job
from compilefarm.graph.replacements import find_replacement
from compilefarm.graph.testing import capture
from compilefarm.torch_internals.operators import register_quantized_operators

register_quantized_operators()
quantized = torch.ops.quantized_decomposed


class Quantized(torch.nn.Module):
    """A layer whose input and weights are rounded to eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 127, (4, 8), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4) + 0.1)
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = quantized.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
        rounded = quantized.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        given = quantized.dequantize_per_tensor.tensor(rounded, scale, zero, 0, 255, torch.uint8)
        weight = quantized.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        result = torch.nn.functional.linear(given, weight)
        return quantized.quantize_per_tensor(result, 0.1, 3, -128, 127, torch.int8)


def test_they_are_operators_of_torch() -> None:
    x, model = torch.rand(2, 8), Quantized()
    captured = capture(model, x)
    encoded = captured.encode()
    assert not encoded.job.environment.operators
    decoded = decode_job(encoded.job, blobs=encoded.blobs).graph_module
    (given,) = decoded(*captured.example_inputs, *encoded.held)
    assert torch.equal(given, model(x))


@pytest.fixture
def replaced() -> Iterator[None]:
    library = torch.library.Library("quantized_decomposed", "IMPL")
    library.impl("quantize_per_tensor", lambda *_: torch.zeros(1), "CPU")
    yield
    library._destroy()


def test_a_kernel_of_anybody_else_is_seen(replaced: None) -> None:
    assert "quantized_decomposed::quantize_per_tensor" in (find_replacement() or "")
