"""Synthetic inputs look as the job says and do the graph no harm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import capture
from compilefarm.torch_internals.fake_tensors import FakeTensor
from compilefarm.worker.inputs import keep_integers, move_by_last_bits, random_inputs


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 4),
        torch.ones(3, 4).t(),
        torch.ones(40)[3:39:3].view(3, 4),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.ones(()),
        torch.ones(0, 3),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.uint16),
        torch.ones(3, 4, dtype=torch.bfloat16),
        torch.ones(3, 4).to(torch.float8_e4m3fn),
        torch.ones(3, 4, dtype=torch.complex64),
        torch.ones(3, 4, requires_grad=True),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_inputs_look_as_the_job_says(tensor: torch.Tensor) -> None:
    # A view: float8 can do little else.
    job = capture(lambda x: x.unsqueeze(0), tensor).encode().job
    (made,) = random_inputs(job, seed=0)
    assert not isinstance(made, FakeTensor)
    assert isinstance(made, torch.nn.Parameter) == isinstance(tensor, torch.nn.Parameter)
    for name in ("shape", "dtype", "device", "requires_grad"):
        assert getattr(made, name) == getattr(tensor, name)
    assert made.stride() == tensor.stride()
    assert made.storage_offset() == tensor.storage_offset()


def test_equal_seeds_give_equal_elements() -> None:
    job = capture(torch.add, torch.ones(3, 4), torch.ones(3, 4)).encode().job
    first, again, other = (random_inputs(job, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_no_rows_of_a_large_tensor_are_alike(dtype: torch.dtype) -> None:
    job = capture(lambda x: x.unsqueeze(0), torch.ones(512, 1024).to(dtype)).encode().job
    (made,) = random_inputs(job, seed=0)
    assert made.float().unique(dim=0).shape[0] == 512
    assert made.float().unique(dim=1).shape[1] == 1024
    assert made.float().std() == pytest.approx(1024**-0.5, rel=0.1)


def test_indices_stay_valid_and_masks_leave_something() -> None:
    def looked_up(table: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> Any:
        found = torch.nn.functional.embedding(index, table)
        return torch.nn.functional.scaled_dot_product_attention(found, found, found, attn_mask=mask)

    mask = torch.ones(5, 5, dtype=torch.bool)
    job = capture(looked_up, torch.ones(7, 4), torch.zeros(2, 5, dtype=torch.int64), mask).encode().job
    (result,) = decode_job(job, blobs={}).graph_module(*random_inputs(job, seed=0))
    assert result.isfinite().all()


def test_a_deep_network_stays_finite_in_half_precision() -> None:
    layers: list[torch.nn.Module] = []
    for _ in range(24):
        layers += [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).to(torch.float16).eval()
    job = capture(model, torch.ones(4, 64, dtype=torch.float16)).encode().job
    (result,) = decode_job(job, blobs={}).graph_module(*random_inputs(job, seed=0))
    assert result.isfinite().all()
    assert result.abs().max() > 0


def test_inputs_made_in_inference_mode_are_ordinary_tensors() -> None:
    with torch.inference_mode():
        job = capture(torch.relu, torch.ones(3)).encode().job
        (made,) = random_inputs(job, seed=0)
    assert not made.is_inference()


def test_an_expanded_input_is_expanded_again() -> None:
    given = torch.rand(1, 3).expand(4, 3)
    job = capture(lambda x: x.sum(0), given).encode().job
    (made,) = random_inputs(job, seed=0)
    assert (made.shape, made.stride()) == (given.shape, given.stride())
    assert made.unique().numel() == 3
    torch.testing.assert_close(decode_job(job, blobs={}).graph_module(made)[0], made.sum(0))


def test_integers_are_restored_where_they_lie() -> None:
    spread = torch.zeros(4, 6, dtype=torch.int64)[:, ::2]
    repeated = torch.zeros(1, 3, dtype=torch.int64).expand(2, 3)
    mask, floats = torch.tensor([True, True]), torch.zeros(2)
    restore = keep_integers([spread, repeated, mask, floats, 7])
    for _ in range(2):
        spread += 5
        mask[0] = False
        floats += 1
        restore()
        assert not spread.any()
        assert spread.stride() == (6, 2)
        assert mask.all()
        assert floats.all()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 40),
        torch.ones(40).expand(3, 40),
        torch.ones(40, 3, requires_grad=True).t(),
        torch.ones(40, dtype=torch.float64),
        torch.ones(40, dtype=torch.bfloat16),
        torch.ones(40).to(torch.float8_e4m3fn),
        torch.ones(40, dtype=torch.complex64),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_floats_move_up_and_down_by_their_last_bits(tensor: torch.Tensor) -> None:
    job = capture(lambda x: x.unsqueeze(0), tensor).encode().job
    (made,), (moved,) = random_inputs(job, seed=0), random_inputs(job, seed=0)
    move_by_last_bits([moved], seed=1)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    shares = ((moved.to(wide) - made.to(wide)) / made.to(wide)).real
    assert shares.min() < 0 < shares.max()
    assert shares.abs().max() < 6 * torch.finfo(tensor.dtype).eps
    assert moved.stride() == made.stride()


def test_floats_move_by_more_where_something_coarser_is_computed_of_them() -> None:
    job = capture(lambda x: x.bfloat16(), torch.ones(40)).encode().job
    (made,), (moved,) = random_inputs(job, seed=0), random_inputs(job, seed=0)
    move_by_last_bits([moved], seed=1, epsilon=torch.finfo(torch.bfloat16).eps)
    shares = ((moved - made) / made).abs()  # type: ignore[operator]  # there are only tensors
    torch.testing.assert_close(shares, torch.full((40,), 4 * torch.finfo(torch.bfloat16).eps), rtol=1e-3, atol=0)


def test_of_less_than_a_last_bit_some_floats_move_by_one() -> None:
    job = capture(lambda x: x + 1, torch.ones(64, 64, dtype=torch.bfloat16)).encode().job
    (made,), (moved,) = random_inputs(job, seed=0), random_inputs(job, seed=0)
    move_by_last_bits([moved], seed=1, last_bits=1 / 16)
    assert isinstance(made, torch.Tensor)
    assert isinstance(moved, torch.Tensor)
    share = float((moved != made).float().mean())
    assert 1 / 24 < share < 1 / 12
    assert float(((moved - made) / made).abs().max()) < 2.1 * torch.finfo(torch.bfloat16).eps


def test_integers_do_not_move() -> None:
    job = capture(lambda x, y: (x + 1, ~y), torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)).encode()
    made, moved = random_inputs(job.job, seed=0), random_inputs(job.job, seed=0)
    move_by_last_bits(moved, seed=1)
    assert all(map(torch.equal, made, moved))  # type: ignore[arg-type]
