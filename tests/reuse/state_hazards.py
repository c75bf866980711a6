"""Cases of tests/reuse/hazards.py about the state of a process, and what is asked of it while tracing."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import gc
import locale
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.reuse.cases import X, case, more, patched, unsaid
from tests.reuse.python_hazards import Calls, Held

_HERE = sys.modules[__name__]


def _switched(name: str, ask: Callable[..., Any], switch: Callable[[bool], Any]) -> None:
    """A case of something that is switched on, and off again."""

    def another(changed: bool) -> Iterator[Any]:
        switch(changed)
        try:
            yield ask, (X,)
        finally:
            switch(False)

    another.__name__ = name
    more(another)


def _entered(name: str, ask: Callable[..., Any], enter: Callable[[], Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        with enter() if changed else contextlib.nullcontext():
            yield ask, (X,)

    another.__name__ = name
    more(another)


_switched(
    "anomalies_that_are_detected",
    lambda x: x * (3 if torch.is_anomaly_enabled() else 2),
    torch.autograd.set_detect_anomaly,
)
_switched(
    "a_library_for_contractions",
    lambda x: x * (3 if torch.backends.opt_einsum.enabled else 2),
    lambda on: setattr(torch.backends.opt_einsum, "enabled", not on),
)
_switched(
    "a_fast_path_of_nnpack",
    lambda x: (
        x * (2 if torch.backends.nnpack.enabled else 3)
        if hasattr(torch.backends.nnpack, "enabled")
        else x * (2 if torch._C._get_nnpack_enabled() else 3)
    ),
    lambda on: torch._C._set_nnpack_enabled(not on),
)
_switched(
    "a_switch_of_cudnn",
    lambda x: x * (3 if torch.backends.cudnn.benchmark else 2),
    lambda on: setattr(torch.backends.cudnn, "benchmark", on),
)
_switched(
    "a_limit_of_cudnn",
    lambda x: x * torch.backends.cudnn.benchmark_limit,
    lambda on: setattr(torch.backends.cudnn, "benchmark_limit", 7 if on else 10),
)
_switched(
    "a_reduced_precision",
    lambda x: x * (3 if torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction else 2),
    lambda on: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", not on),
)
_switched(
    "a_kernel_of_attention",
    lambda x: x * (3 if torch.backends.cuda.flash_sdp_enabled() else 2),
    lambda on: torch.backends.cuda.enable_flash_sdp(not on),
)
_switched(
    "memory_that_is_filled",
    lambda x: x * (3 if torch.utils.deterministic.fill_uninitialized_memory else 2),
    lambda on: setattr(torch.utils.deterministic, "fill_uninitialized_memory", not on),
)
_switched(
    "how_determinism_is_watched",
    lambda x: x * (2 + torch.get_deterministic_debug_mode()),
    lambda on: torch.set_deterministic_debug_mode(1 if on else 0),
)
_switched(
    "warnings_that_are_repeated", lambda x: x * (3 if torch.is_warn_always_enabled() else 2), torch.set_warn_always
)
_switched(
    "parameters_that_are_overwritten",
    lambda x: x * (3 if torch.__future__.get_overwrite_module_params_on_conversion() else 2),
    torch.__future__.set_overwrite_module_params_on_conversion,
)
_switched("a_seed", lambda x: x * (torch.initial_seed() % 7), lambda on: torch.manual_seed(3 if on else 2))
_switched("a_seed_that_is_drawn_from", lambda x: x * torch.rand(1).item(), lambda on: torch.manual_seed(3 if on else 2))
_switched("random_numbers", lambda x: x + torch.rand(4), lambda on: torch.manual_seed(3 if on else 2))
_switched("random_numbers_of_python", lambda x: x * random.random(), lambda on: random.seed(3 if on else 2))
_switched("random_numbers_of_numpy", lambda x: x * float(np.random.rand()), lambda on: np.random.seed(3 if on else 2))
_switched(
    "a_level_of_a_logger",
    lambda x: x * logging.getLogger("hazards").level,
    lambda on: logging.getLogger("hazards").setLevel(30 if on else 20),
)
_switched(
    "a_logger_that_is_enabled",
    lambda x: x * (3 if logging.getLogger("hazards").isEnabledFor(25) else 2),
    lambda on: logging.getLogger("hazards").setLevel(30 if on else 20),
)
_switched(
    "logging_that_is_disabled",
    lambda x: x * (2 + logging.root.manager.disable),
    lambda on: logging.disable(1 if on else 0),
)
_switched(
    "garbage_that_is_collected",
    lambda x: x * (3 if gc.isenabled() else 2),
    lambda on: gc.disable() if on else gc.enable(),
)
_switched(
    "a_name_of_a_thread",
    lambda x: x * len(threading.current_thread().name),
    lambda on: setattr(threading.current_thread(), "name", "abc" if on else "ab"),
)
_switched(
    "an_interval_of_threads",
    lambda x: x * sys.getswitchinterval(),
    lambda on: sys.setswitchinterval(2.0 if on else 0.005),
)
_switched(
    "a_size_of_threads", lambda x: x * (1 + threading.stack_size()), lambda on: threading.stack_size(65536 if on else 0)
)
_switched(
    "a_path_of_modules",
    lambda x: x * (3 if "/nowhere" in sys.path else 2),
    lambda on: sys.path.append("/nowhere") if on else _without(sys.path, "/nowhere"),
)
_switched(
    "filters_of_warnings",
    lambda x: x * (1 + sum([1 for each in warnings.filters if each[2] is UserWarning and each[4] == 77])),
    lambda on: warnings.filterwarnings("ignore", category=UserWarning, lineno=77) if on else warnings.resetwarnings(),
)
_switched(
    "a_mark_of_numpy",
    lambda x: x * (3 if np.geterr()["over"] == "raise" else 2),
    lambda on: np.seterr(over="raise" if on else "warn"),
)
_switched(
    "a_way_to_copy",
    lambda x: x * copy.copy(Held(2.0)).value,
    lambda on: (
        copyreg.pickle(Held, lambda held: (Held, (held.value + 1,))) if on else copyreg.dispatch_table.pop(Held, None)
    ),
)
_switched(
    "a_mark_on_a_library",
    lambda x: x * len(np.__version__),
    lambda on: setattr(np, "__version__", "0" if on else _NUMPY),
)
_switched(
    "a_version_of_torch",
    lambda x: x * len(str(torch.version.cuda)),
    lambda on: setattr(torch.version, "cuda", "0" if on else _CUDA),
)
_NUMPY, _CUDA = np.__version__, torch.version.cuda


def _without(values: list[str], value: str) -> None:
    while value in values:
        values.remove(value)


_entered(
    "backends_of_attention",
    lambda x: x * (3 if torch._C._get_flash_sdp_enabled() else 2),
    lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
)
_entered("no_gradients", lambda x: x * (3 if torch.is_grad_enabled() else 2), torch.no_grad)
_entered(
    "automatic_precision_that_is_asked_for",
    lambda x: x * (3 if torch.is_autocast_enabled("cpu") else 2),
    lambda: torch.autocast("cpu", torch.bfloat16),
)
_entered(
    "a_type_of_automatic_precision",
    lambda x: x * (3 if torch.get_autocast_dtype("cpu") == torch.float16 else 2),
    lambda: torch.autocast("cpu", torch.float16, enabled=False),
)
_entered(
    "automatic_precision_without_a_cache",
    lambda x: x * (3 if torch.is_autocast_cache_enabled() else 2),
    lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
)


class Dispatches(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        return result * 3 if function is torch.ops.aten.sin.default else result


_entered("a_mode_of_dispatch", lambda x: torch.sin(x), Dispatches)


def _patched(name: str, owner: Any, attribute: str, value: Any, ask: Callable[..., Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        with patched(owner, attribute, value, when=changed):
            yield ask, (X,)

    another.__name__ = name
    more(another)


_patched("gpus_that_are_counted", torch.cuda, "device_count", lambda: 3, lambda x: x * (1 + torch.cuda.device_count()))
_patched("a_platform", sys, "platform", "hazard", lambda x: x * len(sys.platform))
_patched("a_name_of_the_system", os, "name", "hazard", lambda x: x * len(os.name))
_patched("a_largest_size", sys, "maxsize", 3, lambda x: x * (2 if sys.maxsize > 3 else 3))
_patched("processors_that_are_counted", os, "cpu_count", lambda: 77, lambda x: x * os.cpu_count())
_patched("a_time", time, "time", lambda: 3.0, lambda x: x * (2 if time.time() > 3 else 3))
_patched("a_number_of_the_process", os, "getpid", lambda: 1, lambda x: x * (2 if os.getpid() > 1 else 3))
_patched("a_folder", os, "getcwd", lambda: "/", lambda x: x * len(os.getcwd()))
_patched("a_language", locale, "getlocale", lambda *_: ("hazard",), lambda x: x * len(locale.getlocale()))
_patched("an_encoding", sys, "getdefaultencoding", lambda: "hazards", lambda x: x * len(sys.getdefaultencoding()))


@case
def a_file_that_is_made(changed: bool) -> Iterator[Any]:
    folder = os.environ["HAZARDS_SOURCES"]
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "hazard_file")
    if changed:
        open(path, "w").close()
    yield Calls(lambda x, path: x * (3 if os.path.exists(path) else 2), path), (X,)
    if changed:
        os.remove(path)


@unsaid
def what_a_file_holds(changed: bool) -> Iterator[Any]:
    folder = os.environ["HAZARDS_SOURCES"]
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "hazard_content")
    with open(path, "w") as file:
        file.write("abc" if changed else "ab")

    def reads(x: torch.Tensor, path: str) -> torch.Tensor:
        with open(path) as file:
            return x * len(file.read())

    yield Calls(reads, path), (X,)


@more
def attention_in_a_context(changed: bool) -> Iterator[Any]:
    backend = torch.nn.attention.SDPBackend.MATH if changed else torch.nn.attention.SDPBackend.FLASH_ATTENTION

    def attends(x: torch.Tensor, backend: Any) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(backend):
            return x * (3 if torch._C._get_math_sdp_enabled() else 2)

    yield Calls(attends, backend), (X,)


@case
def an_encoder_with_a_mask(changed: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=changed).eval()
    yield Calls(lambda x, layer: layer(x[None]), layer), (X,)


class UnderAutocast(torch.nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.entered = torch.autocast("cpu", **how)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.entered:
            return x @ x.T


@case
def an_autocast_object_of_another_dtype(changed: bool) -> Iterator[Any]:
    yield UnderAutocast(dtype=torch.float16 if changed else torch.bfloat16), (X,)


@case
def an_autocast_object_that_is_switched_off(changed: bool) -> Iterator[Any]:
    yield UnderAutocast(dtype=torch.bfloat16, enabled=not changed), (X,)
