"""Torch decides at the first attention on a GPU in which order backends are tried; here it decides without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compilefarm.core.keys import key_of
from compilefarm.graph import settings
from compilefarm.graph.ambient import apply_ambient, capture_ambient
from compilefarm.graph.testing import capture
from compilefarm.torch_internals import attention
from compilefarm.v1.job_pb2 import Ambient

from .rows import square

# torch/nn/attention/__init__.py: SDPBackend. An H100 tries cuDNN's first.
OF_A_PROCESS_THAT_BEGINS = [1, 2, 0, 3, 4]
OF_AN_H100 = [3, 1, 2, 0, 4]
BY_MATHEMATICS = [0, 1, 2, 3, 4]
FIRST_ATTENTION = torch._fused_sdp_choice


class _Gpu:
    """A process that has a GPU and that nothing attended in yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_settled = False
        make: Any = torch.empty
        settings.settle_attention_order.cache_clear()
        attention.set_priority_order(OF_A_PROCESS_THAT_BEGINS)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch, "empty", lambda *sizes, dtype, device: make(*sizes, dtype=dtype))
        monkeypatch.setattr(torch, "_fused_sdp_choice", self.attend)

    def attend(self, *given: torch.Tensor) -> int:
        # aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: priority_order
        if not self._is_settled:
            attention.set_priority_order(OF_AN_H100)
        self._is_settled = True
        return int(FIRST_ATTENTION(*given))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gpu]:
    before = attention.priority_order()
    with monkeypatch.context() as patched:
        yield _Gpu(patched)
    attention.set_priority_order(before)
    settings.settle_attention_order.cache_clear()


def order_in(ambient: Ambient) -> str:
    return next((each.value.text for each in ambient.backends if each.name == "cuda.sdp.order"), "")


def test_a_pod_asks_the_same_before_its_first_attention_and_after_it(gpu: _Gpu) -> None:
    before = capture_ambient(["cuda"])
    gpu.attend(*[torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")] * 3)
    assert capture_ambient(["cuda"]) == before
    assert order_in(before) == "3,1,2,0,4"


def test_no_attention_changes_the_order_that_a_worker_takes_on(gpu: _Gpu) -> None:
    settings.settle_attention_order()
    attention.set_priority_order(BY_MATHEMATICS)
    wanted = capture_ambient(["cuda"])
    settings.settle_attention_order.cache_clear()
    attention.set_priority_order(OF_A_PROCESS_THAT_BEGINS)
    gpu._is_settled = False
    with apply_ambient(wanted):
        gpu.attend(*[torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")] * 3)
        assert attention.priority_order() == BY_MATHEMATICS


def test_switches_stay_as_they_were(gpu: _Gpu) -> None:
    torch.backends.cuda.enable_math_sdp(False)
    try:
        settings.settle_attention_order()
        assert not torch.backends.cuda.math_sdp_enabled()
    finally:
        torch.backends.cuda.enable_math_sdp(True)


def test_the_order_decides_nothing_on_a_cpu() -> None:
    graph = capture(square, torch.rand(4, 4))
    usual, order = key_of(graph.encode().job), attention.priority_order()
    attention.set_priority_order(OF_AN_H100)
    try:
        assert key_of(graph.encode().job) == usual
        query = torch.rand(1, 1, 8, 8)
        chosen = FIRST_ATTENTION(query, query, query)
    finally:
        attention.set_priority_order(order)
    assert chosen == FIRST_ATTENTION(query, query, query)
