"""Kernels that Inductor writes for a GPU that is not there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from .imagined_gpu import imagining_a_gpu

inductor_config: Any = importlib.import_module("torch._inductor.config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel as Inductor wrote it.

    Attributes:
        source: of it.
        configurations: number of those between which it would be tuned.
    """

    source: str
    configurations: int


def write_kernels(model: Any, shape: Sequence[int]) -> list[Kernel]:
    """Returns the kernels of a model with one input, with tuning of all that is no matrix product."""
    # What Inductor prepares once, it prepares for the devices that there are.
    torch.compile(torch.mm)(torch.ones(2, 2), torch.ones(2, 2))
    with imagining_a_gpu(), fresh_cache(), _noting_kernels() as kernels, torch.no_grad():
        with FakeTensorMode():
            weights = {name: torch.empty(weight.shape, device="cuda") for name, weight in model.named_parameters()}
            x = torch.empty(*shape, device="cuda")
            traced = make_fx(lambda weights, x: functional_call(model, weights, (x,)))(weights, x)
        with inductor_config.patch(max_autotune_pointwise=True, compile_threads=1):
            compile_fx(traced, [*weights.values(), x])
    return kernels


@contextmanager
def _noting_kernels() -> Iterator[list[Kernel]]:
    heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    compiler: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    kernels: list[Kernel] = []
    counts: list[int] = []

    def cached_autotune(_: Any, configs: Any, **__: Any) -> Any:
        counts.append(len(heuristics.unique_configs(configs)))
        return lambda kernel: kernel

    def triton(_: Any, kernel_name: str, source_code: str, *__: Any, **___: Any) -> Any:
        kernel = getattr(PyCodeCache.load(source_code), kernel_name)
        kernels.append(Kernel(source=source_code, configurations=counts.pop()))
        return kernel

    with (
        mock.patch.object(heuristics, "cached_autotune", cached_autotune),
        mock.patch.object(compiler, "triton", triton),
        mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu"),
    ):
        yield kernels
