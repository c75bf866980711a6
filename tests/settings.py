"""Settings of the whole process, which libraries change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from compilefarm.torch_internals.settings import INDUCTOR

# torchao/quantization/utils.py: recommended_inductor_config_setter
_OF_TORCHAO = (
    "coordinate_descent_check_all_directions",
    "coordinate_descent_tuning",
    "force_fuse_int_mm_with_mul",
    "fx_graph_cache",
    "triton.unique_kernel_names",
)


@contextmanager
def restoring_torchao_settings() -> Iterator[None]:
    """Afterwards, what torchao sets when it quantizes a model is as it was before."""
    precision = torch.get_float32_matmul_precision()
    with INDUCTOR.patch({name: INDUCTOR.get_config_copy()[name] for name in _OF_TORCHAO}):
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
