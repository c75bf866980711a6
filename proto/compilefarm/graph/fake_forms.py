"""What operators return on fake tensors where torch does not say, or says something else than its kernels do.

An operator without a fake form would have to be run while its graph is decoded, on memory of the sizes that the graph
names, and is refused instead. Those that ordinary programs call have their form here. Programs that rely on what is
false of a result stop at it (torch_internals/asserted_results.py); what ordinary programs rely on is corrected here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.operators import OpOverload, schema_of

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


def corrected(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any, *, lays_out: bool = False
) -> Any:
    """What an operator's kernel returns, where torch's own form says otherwise.

    Args:
        operator: has run on fake tensors.
        args: positional arguments, tensors among them fake.
        kwargs: named arguments.
        made: what torch's form has given.
        lays_out: arguments come to the kernel as Inductor lays them out for it.
    """
    correct = _CORRECTIONS.get(operator)
    return made if correct is None else correct(named_arguments(schema_of(operator), args, kwargs), made, lays_out)


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

_OF_SUMS = 0
# Tables of which CPUs add up whole rows.
_ADDED_BY_ROWS = frozenset({torch.float32, torch.float16, torch.bfloat16})


def _bags(named: Mapping[str, Any], made: Sequence[torch.Tensor], lays_out: bool) -> tuple[torch.Tensor, ...]:
    """Bags of which no row is looked at are given no numbers. Torch's form leaves bfloat16 out there, and takes the
    dtype of one of the two lists of indices, which are made one dtype first (aten/src/ATen/native/EmbeddingBag.cpp:
    is_fast_path, promoteIndicesAndOffsets; torch/_meta_registrations.py: meta_embedding_bag).
    """
    sums, numbers, *others = made
    dtype = torch.promote_types(named["indices"].dtype, named["offsets"].dtype)
    size = (0,) if sums.device.type == "cpu" and _adds_by_rows(named, lays_out=lays_out) else numbers.shape
    return sums, numbers.new_empty(size, dtype=dtype), *(each.new_empty(each.shape, dtype=dtype) for each in others)


def _adds_by_rows(named: Mapping[str, Any], *, lays_out: bool) -> bool:
    table, weights = named["weight"], named.get("per_sample_weights")
    pads = named.get("padding_idx", -1) >= 0
    return (
        named.get("mode", _OF_SUMS) == _OF_SUMS
        and table.dtype in _ADDED_BY_ROWS
        and not pads
        and _lies_in_order(table, 1, lays_out=lays_out)
        and (weights is None or _lies_in_order(weights, 0, lays_out=lays_out))
    )


def _lies_in_order(tensor: torch.Tensor, dimension: int, *, lays_out: bool) -> bool:
    # Inductor has tables and weights in order (torch/_inductor/lowering.py: require_contiguous), where a dimension of
    # one element lies in order whatever its stride.
    return tensor.stride(dimension) == 1 or (lays_out and tensor.shape[dimension] != 1)


def _attention(named: Mapping[str, Any], made: Sequence[torch.Tensor], _lays_out: bool) -> tuple[torch.Tensor, ...]:
    """Sums of exponentials of double precision are of double precision, too. Torch 2.11 says single for all
    (torch/_meta_registrations.py: meta__scaled_dot_product_flash_attention_for_cpu).
    """
    values, sums = made
    return values, torch.empty_like(sums, dtype=torch.promote_types(named["query"].dtype, torch.float32))


_CORRECTIONS: Mapping[OpOverload, Callable[[Mapping[str, Any], Any, bool], Any]] = {
    torch.ops.aten._embedding_bag.default: _bags,
    torch.ops.aten._embedding_bag_forward_only.default: _bags,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
