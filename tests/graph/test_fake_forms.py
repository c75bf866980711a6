"""What operators of GPUs return while a graph is decoded is what their like on CPUs returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from compilefarm.graph.fake_forms import find_fake_form

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
