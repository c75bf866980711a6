"""Flexible attention on CPUs: sizes that contradict each other are refused, and block masks are not believed."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import capture
from compilefarm.v1.job_pb2 import Job
from tests.worker.inductor import compiled

Q = torch.ones(2, 4, 256, 16)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    result: torch.Tensor = flex_attention(query, key, value, block_mask=mask)
    return result


def mask_of() -> BlockMask:
    return create_block_mask(lambda batch, head, row, column: row >= column, 1, 1, 256, 256, device="cpu")


def masked() -> Job:
    return capture(attend, Q, Q.clone(), Q.clone(), mask_of(), fullgraph=True).encode().job


def input_of(job: Job, *, dimensions: int) -> int:
    return next(number for number, given in enumerate(job.inputs) if len(given.tensor.shape) == dimensions)


def test_sizes_that_fit() -> None:
    decode_job(masked(), blobs={})
    decode_job(capture(lambda x: flex_attention(x, x, x), Q, fullgraph=True).encode().job, blobs={})


@pytest.mark.parametrize(("number", "dimension", "size"), [(1, 0, 3), (1, 1, 3), (1, 1, 0), (2, 2, 64), (2, 1, 2)])
def test_keys_and_values_of_other_sizes(number: int, dimension: int, size: int) -> None:
    job = masked()
    job.inputs[number].tensor.shape[dimension].size = size
    with pytest.raises(InvalidRequest, match="queries, keys and values differ in size"):
        decode_job(job, blobs={})


@pytest.mark.parametrize(("dimensions", "dimension", "size"), [(3, 2, 1), (3, 0, 3), (3, 1, 3)])
def test_a_block_mask_of_another_size(dimensions: int, dimension: int, size: int) -> None:
    job = masked()
    job.inputs[input_of(job, dimensions=dimensions)].tensor.shape[dimension].size = size
    with pytest.raises(InvalidRequest, match="block mask is of another size than its queries"):
        decode_job(job, blobs={})


@pytest.mark.compiles
def test_a_block_mask_is_not_believed() -> None:
    captured = capture(attend, Q, Q.clone(), Q.clone(), mask_of(), fullgraph=True)
    encoded = captured.encode()
    program, inputs = compiled(encoded), list(captured.example_inputs)
    (result,) = program(*inputs)
    assert torch.allclose(result, Q, atol=1e-5)
    # It says that it has as many blocks, of which it has two.
    inputs[input_of(encoded.job, dimensions=3)].fill_(1000)
    with pytest.raises(RuntimeError, match="index out of bounds: block mask"):
        program(*inputs)
