"""What operators return on fake tensors where torch does not say.

An operator without a fake form would have to be run while its graph is decoded, on memory of the sizes that the graph
names, and is refused instead. Those that ordinary programs call have their form here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compilefarm.torch_internals.operators import OpOverload

# torch.nn.TransformerEncoderLayer calls it when nothing trains. Torch 2.15 has this form of it, torch 2.11 none
# (torch/_meta_registrations.py: meta__transformer_encoder_layer_fwd).
_LIKE_THE_FIRST = frozenset({torch.ops.aten._transformer_encoder_layer_fwd.default})
# What torch.distributions draws by has a form in neither (aten/src/ATen/native/Distributions.cpp: _s_dirichlet_cpu).
_AS_LARGE_AS_THE_FIRST = frozenset({torch.ops.aten._sample_dirichlet.default})
# aten/src/ATen/native/BatchLinearAlgebra.cpp: geqrf_out_helper
_FACTORED_BY_REFLECTIONS = frozenset({torch.ops.aten.geqrf.default})
# Hand on what they waited for, in the same memory; torch's own form says that it is new
# (torch/csrc/distributed/c10d/Functional.cpp: wait_tensor).
_WAITS = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors"})


def find_fake_form(operator: OpOverload, args: Sequence[Any]) -> Callable[[], Any] | None:
    """What is called instead of an operator while a graph is decoded, or None for torch's own form."""
    if operator.name() in _WAITS and args:
        waited = args[0]
        return lambda: waited
    if operator in _LIKE_THE_FIRST and args and isinstance(args[0], torch.Tensor):
        like = args[0]
        return lambda: torch.empty_like(like)
    if operator in _AS_LARGE_AS_THE_FIRST and args and isinstance(args[0], torch.Tensor):
        size = args[0]
        return lambda: torch.empty_like(size, memory_format=torch.contiguous_format)
    if operator in _FACTORED_BY_REFLECTIONS and args and isinstance(args[0], torch.Tensor) and args[0].dim() > 1:
        matrix = args[0]
        return lambda: _reflections(matrix)
    return None


def _reflections(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices column by column, and a number for each reflection."""
    *batch, rows, columns = matrix.shape
    return matrix.new_empty(*batch, columns, rows).mT, matrix.new_empty(*batch, min(rows, columns))
