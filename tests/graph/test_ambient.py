"""A captured state can be put on and taken off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch

from compilefarm.graph.ambient import apply_ambient, capture_ambient
from compilefarm.v1.job_pb2 import Ambient

_TYPES = ("cpu", "cuda")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _calls(first: Callable[[], object], last: Callable[[], object]) -> Iterator[None]:
    first()
    try:
        yield
    finally:
        last()


def _setting(owner: Any, name: str, value: object) -> AbstractContextManager[None]:
    before = getattr(owner, name)
    return _calls(lambda: setattr(owner, name, value), lambda: setattr(owner, name, before))


_BACKENDS = torch.backends
STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default": ExitStack,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
    "float64": lambda: _default_dtype(torch.float64),
    "medium": lambda: _calls(
        lambda: torch.set_float32_matmul_precision("medium"), lambda: torch.set_float32_matmul_precision("highest")
    ),
    "deterministic": lambda: _calls(
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "old TF32 switch": lambda: _setting(_BACKENDS.cudnn, "allow_tf32", False),
    "new TF32 setting": lambda: _setting(_BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "contradicting TF32 settings": lambda: _setting(_BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    "general precision": lambda: _setting(_BACKENDS, "fp32_precision", "ieee"),
    "no flash attention": lambda: _calls(
        lambda: _BACKENDS.cuda.enable_flash_sdp(False), lambda: _BACKENDS.cuda.enable_flash_sdp(True)
    ),
    "no oneDNN": lambda: _BACKENDS.mkldnn.flags(enabled=False),
    "no cuDNN": lambda: _setting(_BACKENDS.cudnn, "enabled", False),
    "cuDNN benchmarks": lambda: _setting(_BACKENDS.cudnn, "benchmark", True),
    "half accumulation": lambda: _setting(_BACKENDS.cuda.matmul, "allow_fp16_accumulation", True),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_what_was_captured_is_what_applies(state: Callable[[], AbstractContextManager[object]]) -> None:
    before = capture_ambient(_TYPES)
    with state():
        captured = capture_ambient(_TYPES)
        # Over an equal state it changes nothing.
        with apply_ambient(captured):
            assert capture_ambient(_TYPES) == captured
        assert capture_ambient(_TYPES) == captured
    with apply_ambient(captured):
        assert capture_ambient(_TYPES) == captured
    assert capture_ambient(_TYPES) == before


def test_the_state_is_restored_when_a_compile_raises() -> None:
    before = capture_ambient(_TYPES)
    with torch.no_grad(), _default_dtype(torch.float64):
        captured = capture_ambient(_TYPES)
    with pytest.raises(RuntimeError, match="compile"), apply_ambient(captured):
        raise RuntimeError("compile")
    assert capture_ambient(_TYPES) == before


def test_a_worker_that_differs_takes_on_the_clients_state() -> None:
    captured = capture_ambient(_TYPES)
    with torch.no_grad(), _setting(_BACKENDS.cudnn, "benchmark", True), torch.autocast("cpu"), apply_ambient(captured):
        assert capture_ambient(_TYPES) == captured
        assert not torch.is_autocast_enabled("cpu")


def test_threads_are_put_on_and_taken_off() -> None:
    before = torch.get_num_threads()
    captured = capture_ambient(["cpu"])
    captured.cpu_threads = before + 1
    with apply_ambient(captured):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_defaults_are_not_sent() -> None:
    seen: list[Ambient] = []
    # A fresh thread: no other test's modes.
    thread = threading.Thread(target=lambda: seen.append(capture_ambient(["cpu"])))
    thread.start()
    thread.join()
    assert not seen[0].backends
    assert seen[0].float32_matmul_precision == "highest"
    assert [autocast.device_type for autocast in seen[0].autocast] == ["cpu"]
