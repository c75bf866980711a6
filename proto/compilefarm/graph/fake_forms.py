"""What operators return on fake tensors where torch does not say.

An operator without a fake form would have to be run while its graph is decoded, on memory of the sizes that the graph
names, and is refused instead. Those that ordinary programs call have their form here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.torch_internals.operators import OpOverload

# Hand on what they waited for, in the same memory; torch's own form says that it is new
# (torch/csrc/distributed/c10d/Functional.cpp: wait_tensor).
_WAITS = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors"})


def find_fake_form(operator: OpOverload, args: Sequence[Any]) -> Callable[[], Any] | None:
    """What is called instead of an operator while a graph is decoded, or None for torch's own form."""
    if operator.name() in _WAITS and args:
        waited = args[0]
        return lambda: waited
    form = _FORMS.get(operator)
    if form is None or len(args) < form.tensors:
        return None
    tensors = args[: form.tensors]
    if any(not isinstance(tensor, torch.Tensor) or tensor.dim() < form.dimensions for tensor in tensors):
        return None
    return lambda: form.make(*tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What an operator returns.

    Attributes:
        make: gives it, from the operator's first arguments.
        tensors: how many of those there are, all tensors.
        dimensions: that each of them has at least.
    """

    make: Callable[..., Any]
    tensors: int = 1
    dimensions: int = 0


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _reflections(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices column by column, and a number for each reflection."""
    *batch, rows, columns = matrix.shape
    return matrix.new_empty(*batch, columns, rows).mT, matrix.new_empty(*batch, min(rows, columns))


def _samples(images: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return images.new_empty(images.shape[0], images.shape[1], grid.shape[1], grid.shape[2])


def _gradients_of_samples(images: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _in_rows(images), _in_rows(grid)


def _hidden_and_gates(*gates_and_hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows, and what the gradient needs of the gates, five numbers for each hidden one."""
    hidden = gates_and_hidden[-1]
    return _in_rows(hidden), hidden.new_empty(hidden.shape[0], hidden.shape[1] * 5)


_FORMS = {
    # torch.nn.TransformerEncoderLayer calls it when nothing trains. Torch 2.15 has this form of it, torch 2.11 none
    # (torch/_meta_registrations.py: meta__transformer_encoder_layer_fwd).
    torch.ops.aten._transformer_encoder_layer_fwd.default: _Form(make=torch.empty_like),
    # What torch.distributions draws by has a form in neither (aten/src/ATen/native/Distributions.cpp:
    # _s_dirichlet_cpu).
    torch.ops.aten._sample_dirichlet.default: _Form(make=_in_rows),
    # aten/src/ATen/native/BatchLinearAlgebra.cpp: geqrf_out_helper
    torch.ops.aten.geqrf.default: _Form(make=_reflections, dimensions=2),
    # What grid_sample calls on GPUs with zeros beyond the edges and aligned corners
    # (aten/src/ATen/native/cudnn/GridSampler.cpp).
    torch.ops.aten.cudnn_grid_sampler.default: _Form(make=_samples, tensors=2, dimensions=4),
    torch.ops.aten.cudnn_grid_sampler_backward.default: _Form(make=_gradients_of_samples, tensors=2, dimensions=4),
    # What nn.GRUCell calls on GPUs; torch 2.15 has this form of it, torch 2.11 none (aten/src/ATen/native/cuda/RNN.cu).
    torch.ops.aten._thnn_fused_gru_cell.default: _Form(make=_hidden_and_gates, tensors=3, dimensions=2),
}
