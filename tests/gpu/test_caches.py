"""What `python -m tests.gpu.caches` compiles is tuned: its kernels are written here for a GPU that is not there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fuzz.imagined_gpu import imagining_a_gpu

from .caches import INPUT, make_model

pytest.importorskip("triton")
inductor_config: Any = importlib.import_module("torch._inductor.config")


@contextmanager
def counting_configurations() -> Iterator[list[int]]:
    """A number for each kernel that is written inside: of the configurations between which it is tuned."""
    heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    compiler: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    counts: list[int] = []

    def cached_autotune(_: Any, configs: Any, **__: Any) -> Any:
        counts.append(len(heuristics.unique_configs(configs)))
        return lambda kernel: kernel

    def triton(_: Any, kernel_name: str, source_code: str, *__: Any, **___: Any) -> Any:
        return getattr(PyCodeCache.load(source_code), kernel_name)

    with (
        mock.patch.object(heuristics, "cached_autotune", cached_autotune),
        mock.patch.object(compiler, "triton", triton),
        mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu"),
    ):
        yield counts


def test_each_kernel_is_tuned() -> None:
    model = make_model()
    # What Inductor prepares once, it prepares for the devices that there are.
    torch.compile(torch.mm)(torch.ones(2, 2), torch.ones(2, 2))
    with imagining_a_gpu(), fresh_cache(), counting_configurations() as counts, torch.no_grad():
        with FakeTensorMode():
            weights = {name: torch.empty(weight.shape, device="cuda") for name, weight in model.named_parameters()}
            x = torch.empty(*INPUT, device="cuda")
            traced = make_fx(lambda weights, x: functional_call(model, weights, (x,)))(weights, x)
        with inductor_config.patch(max_autotune_pointwise=True, compile_threads=1):
            compile_fx(traced, [*weights.values(), x])
    assert len(counts) == 2
    assert min(counts) > 1
