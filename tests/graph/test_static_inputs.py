"""Which inputs are where they were at each call: CUDA graphs read these in place, and copy the others."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from compilefarm.graph.encode import _GraphWriter, _mark_static
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import capture
from tests.worker.inductor import compiled


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.cache = torch.zeros(4)
        torch._dynamo.mark_static_address(self.cache)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(x.sum(0))
        return self.linear(x) + self.mean + self.cache


def _marked(model: nn.Module, *args: torch.Tensor) -> EncodedJob:
    """The job as on a GPU, for which alone the numbers are sent."""
    captured = capture(model, *args)
    encoded = captured.encode()
    writer = _GraphWriter(captured.graph_module)
    writer.write(captured.example_inputs)
    _mark_static(encoded.job, writer)
    return encoded


@pytest.fixture(scope="module")
def encoded() -> EncodedJob:
    return _marked(_Model(), torch.rand(2, 4))


def test_parameters_buffers_and_marked_tensors_are_static(encoded: EncodedJob) -> None:
    shapes = {tuple(each.size for each in given.tensor.shape): given.is_static for given in encoded.job.inputs}
    assert shapes == {(4, 4): True, (4,): True, (2, 4): False}


def test_without_cuda_graphs_it_is_not_said() -> None:
    job = capture(_Model(), torch.rand(2, 4)).encode(options={"triton.cudagraphs": True}).job
    assert not any(given.is_static for given in job.inputs)


def test_the_compiler_is_told(encoded: EncodedJob) -> None:
    with torch.no_grad():
        program = compiled(encoded)
    expected = [number for number, given in enumerate(encoded.job.inputs) if given.is_static]
    assert expected
    entry = pickle.loads(program.serialize())[0]
    assert list(entry.compiled_fw.result.fx_kwargs["static_input_idxs"]) == expected
