"""A GPU that is not there: Inductor writes kernels for Triton for it, and nothing is compiled or run.

Gradients cannot be had on it (they need the engine of torch, in C++), nor can max-autotune time anything.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._inductor.compile_fx
import torch._inductor.scheduler
import torch._inductor.select_algorithm
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# An H100's, as far as Inductor asks (torch/_inductor/runtime/hints.py: DeviceProperties).
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=132,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2_048,
    max_threads_per_block=1_024,
    warp_size=32,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=50 << 20,
    gcnArchName="",
)


class _Driver:
    """What Triton is asked for while kernels are written."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", PROPERTIES.major * 10 + PROPERTIES.minor, PROPERTIES.warp_size)


def _properties(*_: object) -> Any:
    return PROPERTIES


def _yes(*_: object, **__: object) -> bool:
    return True


def _zero(*_: object) -> int:
    return 0


def _nothing(*_: object, **__: object) -> None:
    return None


@contextlib.contextmanager
def imagining_a_gpu() -> Iterator[None]:
    """Inside, torch takes there to be one."""
    functions: dict[str, Any] = {
        "torch.cuda._exchange_device": _zero,
        "torch.cuda._lazy_init": _nothing,
        "torch.cuda._maybe_exchange_device": _zero,
        "torch.cuda.current_device": _zero,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
        "torch.cuda.get_device_name": lambda *_: PROPERTIES.name,
        "torch.cuda.get_device_properties": _properties,
        "torch.cuda.get_rng_state": lambda *_: torch.get_rng_state(),
        "torch.cuda.is_available": _yes,
        "torch.cuda.set_device": _nothing,
        "torch.cuda.set_rng_state": _nothing,
        "torch.cuda.synchronize": _nothing,
        "torch._subclasses.fake_tensor.init_gpu_context": _nothing,
        # All three make tensors there, to trace what they replace or to see what is equal throughout.
        "torch._inductor.fx_passes.joint_graph.constant_fold_uniform_value": _nothing,
        "torch._inductor.fx_passes.fuse_attention._sfdp_init": _nothing,
        "torch._inductor.fx_passes.pad_mm._pad_mm_init": _nothing,
    }
    interface = {
        "current_device": _zero,
        "get_compute_capability": lambda *_: 90,
        "get_device_properties": _properties,
        "is_available": _yes,
        "is_triton_capable": _yes,
        "raise_if_triton_unavailable": _nothing,
    }
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            importlib.import_module(name.rpartition(".")[0])
            stack.enter_context(mock.patch(name, function))
        for module in [
            each for name, each in sys.modules.items() if name.startswith(("torch._inductor", "torch.utils"))
        ]:
            if "has_triton" in vars(module):
                stack.enter_context(mock.patch.object(module, "has_triton", _yes))
        stack.enter_context(mock.patch.object(driver, "_active", _Driver()))
        # It would run kernels to tune them.
        stack.enter_context(mock.patch.object(PythonWrapperCodegen, "generate_and_run_autotune_block", _nothing))
        for name in interface.keys() & dir(CudaInterface):
            stack.enter_context(mock.patch.object(CudaInterface, name, staticmethod(interface[name])))
        for name in ("get_device_properties", "current_device"):
            stack.enter_context(mock.patch.object(CudaInterface.Worker, name, staticmethod(interface[name])))
        yield
