"""Constructors of torch's types are sent as torch.tensor, where they are given numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import capture, trace


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.FloatTensor([0.5]),
        lambda: torch.Tensor([[1, 2.5], [3, 4]]),
        lambda: torch.LongTensor([2**40, -1]),
        lambda: torch.BoolTensor([True, False]),
    ],
    ids=["float", "default", "long", "bool"],
)
@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_what_they_make_of_numbers_is_made(make: Callable[[], torch.Tensor], default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        captured = capture(lambda x: x.sum() + make(), torch.ones(3))
        expected = torch.ones(3).sum() + make()
        job = captured.encode().job
    finally:
        torch.set_default_dtype(before)
    # As a worker does, whatever its own default is.
    (result,) = decode_job(job, blobs={}).graph_module(torch.ones(3, dtype=default))
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.Tensor([min(x.shape[0] * 1.5, 7)]),
        lambda x: torch.FloatTensor([[x.shape[0], 0.5], [1, x.shape[0] * 2]]),
        lambda x: torch.LongTensor([x.shape[0] // 2, 1]),
    ],
    ids=["share", "sizes", "integers"],
)
def test_what_they_make_of_sizes_is_made(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + make(x)

    decoded = decode_job(capture(model, torch.ones(4), dynamic=True).encode().job, blobs={})
    for size in (3, 4, 6):
        x = torch.ones(size)
        given = [x if isinstance(each, torch.Tensor) else size for each in decoded.inputs]
        torch.testing.assert_close(decoded.graph_module(*given)[0], model(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "make", [lambda: torch.FloatTensor(3), lambda: torch.LongTensor([1.5])], ids=["size", "rounds"]
)
def test_others_are_not(make: Callable[[], Any]) -> None:
    captured = trace(lambda x: x.sum() + make(), torch.ones(3))
    with pytest.raises(Bypass):
        captured.encode()
