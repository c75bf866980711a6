"""Which precision products of float32 may have, as the process's settings say.

The settings allow a narrower one; which kernels take it is up to eager and Inductor, each for itself: one may run a
convolution in TF32 where the other does not. Public names of torch alone.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from enum import Enum, auto

import torch


class Product(Enum):
    """What multiplies tensors."""

    CONVOLUTION = auto()
    MATMUL = auto()
    RECURRENT = auto()


# TF32 has as many bits of mantissa as float16.
# https://docs.nvidia.com/cuda/parallel-thread-execution/ (tf32)
_WITH_STEPS_OF = {"tf32": torch.float16, "bf16": torch.bfloat16}
_COARSEST_FIRST = (torch.bfloat16, torch.float16)
# Attributes of torch.backends. Inductor makes matmuls of convolutions of one element and of recurrent layers.
_SETTINGS_OF_CUDA = {
    Product.CONVOLUTION: ("cudnn.conv", "cuda.matmul"),
    Product.MATMUL: ("cuda.matmul",),
    Product.RECURRENT: ("cudnn.rnn", "cuda.matmul"),
}
_SETTINGS_OF_CPU = {
    Product.CONVOLUTION: ("mkldnn.conv", "mkldnn.matmul"),
    Product.MATMUL: ("mkldnn.matmul",),
    Product.RECURRENT: ("mkldnn.rnn", "mkldnn.matmul"),
}


def narrow_precisions(*, is_cuda: bool) -> Mapping[Product, torch.dtype]:
    """What may be computed in a narrower precision than float32, with a dtype that has its steps.

    Args:
        is_cuda: on a GPU or on a CPU.
    """
    settings = _SETTINGS_OF_CUDA if is_cuda else _SETTINGS_OF_CPU
    found = {product: _coarsest(_precision(name) for name in names) for product, names in settings.items()}
    return {product: dtype for product, dtype in found.items() if dtype is not None}


def _precision(name: str) -> torch.dtype | None:
    return _WITH_STEPS_OF.get(operator.attrgetter(f"{name}.fp32_precision")(torch.backends))


def _coarsest(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    found = set(dtypes)
    return next((dtype for dtype in _COARSEST_FIRST if dtype in found), None)
