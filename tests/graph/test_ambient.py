"""A captured state can be put on and taken off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest
import torch

from compilefarm.graph.ambient import apply_ambient, capture_ambient
from compilefarm.v1.job_pb2 import Ambient
from tests.torch_states import default_dtype, matmul_precision, restored, setting

_TYPES = ("cpu", "cuda")
_BACKENDS = torch.backends
STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "default": ExitStack,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
    "float64": lambda: default_dtype(torch.float64),
    "medium": lambda: matmul_precision("medium"),
    "deterministic": lambda: restored(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, "warn"),
    "old TF32 switch": lambda: setting(_BACKENDS.cudnn, "allow_tf32", False),
    "new TF32 setting": lambda: setting(_BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "contradicting TF32 settings": lambda: setting(_BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    "general precision": lambda: setting(_BACKENDS, "fp32_precision", "ieee"),
    "no flash attention": lambda: restored(_BACKENDS.cuda.flash_sdp_enabled, _BACKENDS.cuda.enable_flash_sdp, False),
    "no oneDNN": lambda: _BACKENDS.mkldnn.flags(enabled=False),
    "no cuDNN": lambda: setting(_BACKENDS.cudnn, "enabled", False),
    "cuDNN benchmarks": lambda: setting(_BACKENDS.cudnn, "benchmark", True),
    "half accumulation": lambda: setting(_BACKENDS.cuda.matmul, "allow_fp16_accumulation", True),
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
    with torch.no_grad(), default_dtype(torch.float64):
        captured = capture_ambient(_TYPES)
    with pytest.raises(RuntimeError, match="compile"), apply_ambient(captured):
        raise RuntimeError("compile")
    assert capture_ambient(_TYPES) == before


def test_a_worker_that_differs_takes_on_the_clients_state() -> None:
    captured = capture_ambient(_TYPES)
    with torch.no_grad(), setting(_BACKENDS.cudnn, "benchmark", True), torch.autocast("cpu"), apply_ambient(captured):
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
