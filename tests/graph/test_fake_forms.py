"""What operators return while a graph is decoded or compiled is what kernels return; those of GPUs, what their like on
CPUs does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.graph.fake_forms import corrected, find_fake_form
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operators import OpOverload

aten = torch.ops.aten


def _form(operator: Any, *args: torch.Tensor) -> Any:
    found: Callable[[], Any] | None = find_fake_form(operator, args)
    assert found is not None
    return found()


def _is_alike(form: torch.Tensor, real: torch.Tensor) -> bool:
    return (form.shape, form.stride(), form.dtype) == (real.shape, real.stride(), real.dtype)


def test_samples_between_pixels() -> None:
    images = torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    grid = (torch.rand(2, 4, 6, 2) * 2 - 1).requires_grad_()
    sampled = torch.nn.functional.grid_sample(images, grid, align_corners=True)
    gradients = torch.autograd.grad(sampled.sum(), [images, grid])
    assert _is_alike(_form(aten.cudnn_grid_sampler.default, images, grid), sampled)
    of_images, of_grid = _form(aten.cudnn_grid_sampler_backward.default, images, grid, torch.ones_like(sampled))
    assert of_images.shape == gradients[0].shape
    # cuDNN makes it in rows, whatever the images are.
    assert of_images.is_contiguous()
    assert _is_alike(of_grid, gradients[1])


def test_cells_of_recurrent_networks() -> None:
    cell = torch.nn.GRUCell(4, 6)
    inputs, hidden = torch.randn(3, 4), torch.randn(3, 6)
    after, gates = _form(
        aten._thnn_fused_gru_cell.default, inputs @ cell.weight_ih.T, hidden @ cell.weight_hh.T, hidden
    )
    assert _is_alike(after, cell(inputs, hidden))
    # aten/src/ATen/native/cuda/RNN.cu: GRU_WORKSPACE_MULTIPLIER
    assert gates.shape == (3, 5 * 6)


def test_an_operator_whose_arguments_are_few_has_no_form() -> None:
    assert find_fake_form(aten.cudnn_grid_sampler.default, (torch.randn(2, 3),)) is None


def _fake(operator: OpOverload, args: list[Any], *, lays_out: bool = False) -> Any:
    mode = FakeTensorMode()
    given = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in args]
    with mode:
        return corrected(operator, given, {}, operator(*given), lays_out=lays_out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_attention_sums_exponentials_as_kernels_do(dtype: torch.dtype) -> None:
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    args = [torch.randn(2, 4, 3, 8).to(dtype) for _ in range(3)]
    assert all(map(_is_alike, _fake(operator, args), operator(*args)))


TABLES = {
    "in rows": torch.randn(10, 5),
    "in columns": torch.randn(5, 10).t(),
    "one column": torch.randn(10, 1),
    "one column of several": torch.randn(10, 7)[:, :1],
    "one column, in columns": torch.randn(1, 10).t(),
}
SUM, MEAN, LARGEST = 0, 1, 2
NINE, THREE = torch.arange(9), torch.arange(3)


@pytest.mark.parametrize("operator", [aten._embedding_bag.default, aten._embedding_bag_forward_only.default], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("table", TABLES)
def test_bags_have_the_numbers_that_kernels_give_them(operator: OpOverload, dtype: torch.dtype, table: str) -> None:
    values = TABLES[table]
    rows = torch.empty_strided(values.shape, values.stride(), dtype=dtype).copy_(values)
    weights = torch.rand(18).to(dtype)
    integers = (torch.int64, torch.int32)
    for ids, begins, mode, padding in itertools.product(integers, integers, (SUM, MEAN, LARGEST), (-1, 2)):
        for weighed in (None, *((weights[:9], weights[::2]) if mode == SUM else ())):
            args = [rows, NINE.to(ids), THREE.to(begins), False, mode, False, weighed, False, padding]
            assert all(map(_is_alike, _fake(operator, args), operator(*args))), args


@pytest.mark.parametrize("table", TABLES)
def test_bags_have_the_numbers_of_tables_that_are_laid_out(table: str) -> None:
    rows, begins = TABLES[table], torch.arange(3)
    # Of one column, none is laid out: whatever its stride is, it lies in order.
    laid_out = rows if rows.shape[1] == 1 else rows.contiguous()
    said = _fake(aten._embedding_bag.default, [rows, NINE, begins], lays_out=True)
    assert all(map(_is_alike, said, aten._embedding_bag(laid_out, NINE, begins)))
