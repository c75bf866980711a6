"""Switches of the process that change what a graph computes or how it is compiled."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from compilefarm.core.denormals import flushes_denormal
from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.contractions import STRATEGIES, contraction_strategy
from compilefarm.graph.dtypes import get_dtype, name_of
from compilefarm.graph.replacements import find_replacement
from compilefarm.torch_internals import attention
from compilefarm.torch_internals.autograd import has_saved_tensors_hooks
from compilefarm.v1.graph_pb2 import NamedValue, Value
from compilefarm.v1.job_pb2 import Ambient, Autocast

MAX_THREADS = 4096
# torch's default first.
_MATMUL_PRECISIONS = ("highest", "high", "medium")
_FP32_PRECISIONS = ("none", "ieee", "tf32", "bf16")


_State = TypeVar("_State")
# What torch raises when an older switch is read that newer ones contradict (aten/src/ATen/Context.cpp).
_MIXED_SWITCHES = RuntimeError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A switch of torch that is none of its compilers' settings.

    Attributes:
        default: torch's own; only other values are sent, so that a setting which a new torch adds leaves keys alone.
        read: reads it.
        write: sets it.
        words: what it can be if it is a text.
        is_cudas: decides nothing for jobs that compute on the CPU alone.
    """

    default: bool | str
    read: Callable[[], bool | str]
    write: Callable[[bool | str], object]
    words: Collection[str] = _FP32_PRECISIONS
    is_cudas: bool = False


def _attribute(path: str, *, default: bool | str, of: object = torch.backends) -> _Setting:
    owner_path, _, name = path.rpartition(".")
    owner = operator.attrgetter(owner_path)(of) if owner_path else of
    return _Setting(
        default=default,
        read=lambda: getattr(owner, name),
        write=lambda value: setattr(owner, name, value),
        is_cudas=path.startswith(("cudnn.", "cuda.")),
    )


_CUDA = torch.backends.cuda
# torch/nn/attention/__init__.py: SDPBackend. Aten's default: flash, memory-efficient, math, cuDNN, others.
_ATTENTION_ORDER = (1, 2, 0, 3, 4)
_CONTRACTION = "opt_einsum"


def _order_as_text(order: Iterable[int]) -> str:
    return ",".join(map(str, order))


def _write_contraction(value: bool | str) -> None:
    # Where the library is missing nothing can be set; a graph that needs it is compiled elsewhere.
    if torch.backends.opt_einsum.is_available():
        torch.backends.opt_einsum.enabled = value != "off"
        if value != "off":
            torch.backends.opt_einsum.strategy = value


# In the order in which they are set: a general precision writes those below it. The older switch of cuBLAS
# (cuda.matmul.allow_tf32) is another face of Ambient.float32_matmul_precision.
_SETTINGS: dict[str, _Setting] = {
    **{
        path: _attribute(path, default=default)
        for path, default in (
            ("cudnn.allow_tf32", True),
            ("fp32_precision", "none"),
            ("cudnn.fp32_precision", "none"),
            ("mkldnn.fp32_precision", "none"),
            ("cuda.matmul.fp32_precision", "none"),
            ("cudnn.conv.fp32_precision", "tf32"),
            ("cudnn.rnn.fp32_precision", "tf32"),
            ("mkldnn.conv.fp32_precision", "none"),
            ("mkldnn.matmul.fp32_precision", "none"),
            ("mkldnn.rnn.fp32_precision", "none"),
            ("cuda.matmul.allow_bf16_reduced_precision_reduction", True),
            ("cuda.matmul.allow_fp16_accumulation", False),
            ("cuda.matmul.allow_fp16_reduced_precision_reduction", True),
            ("cudnn.benchmark", False),
            ("cudnn.deterministic", False),
            ("cudnn.enabled", True),
            ("mkldnn.deterministic", False),
            ("mkldnn.enabled", True),
        )
    },
    "cuda.sdp.cudnn": _Setting(default=True, read=_CUDA.cudnn_sdp_enabled, write=_CUDA.enable_cudnn_sdp),
    "cuda.sdp.flash": _Setting(default=True, read=_CUDA.flash_sdp_enabled, write=_CUDA.enable_flash_sdp),
    "cuda.sdp.math": _Setting(default=True, read=_CUDA.math_sdp_enabled, write=_CUDA.enable_math_sdp),
    "cuda.sdp.math_reduced_precision": _Setting(
        default=False,
        read=_CUDA.fp16_bf16_reduction_math_sdp_allowed,
        write=_CUDA.allow_fp16_bf16_reduction_math_sdp,
    ),
    "cuda.sdp.mem_efficient": _Setting(
        default=True, read=_CUDA.mem_efficient_sdp_enabled, write=_CUDA.enable_mem_efficient_sdp
    ),
    "cuda.sdp.order": _Setting(
        default=_order_as_text(_ATTENTION_ORDER),
        read=lambda: _order_as_text(attention.priority_order()),
        write=lambda value: attention.set_priority_order([int(number) for number in str(value).split(",")]),
        words=frozenset(map(_order_as_text, itertools.permutations(_ATTENTION_ORDER))),
        # On a CPU the order is fixed (aten/src/ATen/native/transformers/sdp_utils_cpp.cpp: priority_order_cpp).
        is_cudas=True,
    ),
    "deterministic.fill_uninitialized_memory": _attribute(
        "fill_uninitialized_memory", default=True, of=torch.utils.deterministic
    ),
    "autocast.cache": _Setting(
        default=True,
        read=torch.is_autocast_cache_enabled,
        write=lambda value: torch.set_autocast_cache_enabled(bool(value)),
    ),
    # What is folded into constants while a graph is compiled is computed in this mode.
    "flush_denormal": _Setting(
        default=False,
        read=flushes_denormal,
        write=lambda value: torch.set_flush_denormal(bool(value)),
    ),
    # Set on and off for all graphs, sent only for those whose order of contractions is to be found.
    _CONTRACTION: _Setting(
        default="auto", read=contraction_strategy, write=_write_contraction, words=("off", *STRATEGIES)
    ),
}
_ATTENTION_BACKENDS = ("cuda.sdp.cudnn", "cuda.sdp.flash", "cuda.sdp.math", "cuda.sdp.mem_efficient", "cuda.sdp.order")
# Precisions that follow a general one while they are "none".
_LEAVES = (
    "cuda.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)


def capture_ambient(device_types: Iterable[str], *, contracts: bool = True) -> Ambient:
    """The state of this thread.

    Args:
        device_types: the device types that the job computes on.
        contracts: whether the graph has products of more than two tensors whose order is to be found.

    Raises:
        Bypass: as `describe_ambient` and `require_own_torch`.
    """
    require_own_torch()
    return describe_ambient(device_types, contracts=contracts)


def require_own_torch() -> None:
    """Passes if operators, tables and methods of torch are torch's own. The first time takes tens of milliseconds.

    Raises:
        Bypass: something else is in the place of one.
    """
    replacement = find_replacement()
    if replacement is not None:
        raise Bypass("replaced_operator", f"this process has something of its own in the place of {replacement}")


def describe_ambient(device_types: Iterable[str], *, contracts: bool = True) -> Ambient:
    """The state of this thread; what was put in the place of torch's own is not looked for.

    Args:
        device_types, contracts: as for `capture_ambient`.

    Raises:
        Bypass: a default device is set, which decides where factory functions of the graph put their results, or hooks
            for saved tensors are, which would become part of the graph, passes of the user's own, or a value that no
            request can have.
    """
    types = sorted(set(device_types))
    _settle(types)
    if has_saved_tensors_hooks():
        raise Bypass("saved_tensors_hooks", "torch.autograd.graph.saved_tensors_hooks are functions of this process")
    part = settings.find_further_compiler_part()
    if part is not None:
        raise Bypass("custom_compiler", f"this process changes how Inductor compiles: {part}")
    setting = settings.find_deciding_setting()
    if setting is not None:
        raise Bypass("custom_option", f"{setting} differs from its default; farms do not take it")
    if torch.get_default_device() != torch.device("cpu"):
        raise Bypass("default_device", f"the default device is {torch.get_default_device()}; only cpu can be said")
    return Ambient(
        grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=[_autocast(device_type) for device_type in types],
        float32_matmul_precision=_matmul_precision(),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        default_dtype=name_of(torch.get_default_dtype()),
        cpu_threads=torch.get_num_threads() if "cpu" in types else 0,
        backends=list(_backends(types, contracts=contracts)),
    )


def compiled_settings() -> Mapping[str, bool | str]:
    """The switches of torch that are not as torch has them, without those that decide only what runs when a compiled
    program calls cuDNN.
    """
    return {name: value for name, value in _deviations(_read_settings()).items() if not name.startswith("cudnn.")}


def _backends(types: Collection[str], *, contracts: bool) -> Iterator[NamedValue]:
    for name, value in sorted(_deviations(_read_settings()).items()):
        setting = _SETTINGS[name]
        if (name == _CONTRACTION and not contracts) or (setting.is_cudas and "cuda" not in types):
            continue
        if isinstance(value, str) and value not in setting.words:
            raise Bypass("custom_option", f"torch.backends.{name} is {value[:80]!r}, which farms do not take")
        yield NamedValue(name=name, value=_setting_value(value))


@contextmanager
def apply_ambient(ambient: Ambient) -> Iterator[None]:
    """Puts this thread into a captured state, and back.

    Raises:
        InvalidRequest: the state is malformed, or this torch does not know it.
    """
    _check(ambient)
    backends = _decode_settings(ambient.backends)
    for autocast in ambient.autocast:
        _decode_autocast(autocast)
    default_dtype = _floating_dtype(ambient.default_dtype)
    _settle([autocast.device_type for autocast in ambient.autocast])
    with ExitStack() as stack:
        _set_and_restore(stack, torch.set_default_dtype, old=torch.get_default_dtype(), new=default_dtype)
        if ambient.cpu_threads:
            _set_and_restore(stack, torch.set_num_threads, old=torch.get_num_threads(), new=ambient.cpu_threads)
        _set_and_restore(
            stack,
            lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
            old=(
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            new=(ambient.deterministic_algorithms, ambient.deterministic_warn_only),
        )
        defaults = {name: setting.default for name, setting in _SETTINGS.items()}
        _set_and_restore(
            stack,
            _write_precision_and_settings,
            old=(_matmul_precision(), defaults | _read_settings()),
            new=(ambient.float32_matmul_precision, defaults | backends),
        )
        for autocast in ambient.autocast:
            # Made by now: it keeps whether its cache is on.
            stack.enter_context(_decode_autocast(autocast))
        stack.enter_context(torch.inference_mode(ambient.inference_mode))
        stack.enter_context(torch.set_grad_enabled(ambient.grad_enabled))
        yield


def _settle(device_types: Collection[str]) -> None:
    """Has torch decide what it decides for itself when a device is first used."""
    if "cuda" in device_types:
        settings.settle_attention_order()


def _set_and_restore(stack: ExitStack, write: Callable[[_State], object], *, old: _State, new: _State) -> None:
    stack.callback(write, old)
    write(new)


def _check(ambient: Ambient) -> None:
    if ambient.float32_matmul_precision not in (*_MATMUL_PRECISIONS, ""):
        raise InvalidRequest(f"{ambient.float32_matmul_precision[:40]!r} is no precision of float32 matrix products")
    if ambient.cpu_threads > MAX_THREADS:
        raise InvalidRequest(f"{ambient.cpu_threads} threads are asked for; at most {MAX_THREADS} are taken")


def _floating_dtype(name: str) -> torch.dtype:
    dtype = get_dtype(name)
    # torch.set_default_dtype takes these four.
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InvalidRequest(f"{name} cannot be a default dtype, nor the dtype of autocast")
    return dtype


def _autocast(device_type: str) -> Autocast:
    # A graph that switches autocast on without a dtype takes this one.
    dtype = name_of(torch.get_autocast_dtype(device_type))
    return Autocast(device_type=device_type, enabled=torch.is_autocast_enabled(device_type), dtype=dtype)


def _decode_autocast(autocast: Autocast) -> torch.autocast:
    if autocast.device_type not in ("cpu", "cuda"):
        raise InvalidRequest(f"autocast is known for cpu and cuda, not for {autocast.device_type[:20]!r}")
    # Requests of older releases say no dtype where it is off.
    dtype = _floating_dtype(autocast.dtype) if autocast.enabled or autocast.dtype else None
    return torch.autocast(autocast.device_type, enabled=autocast.enabled, dtype=dtype)


def _matmul_precision() -> str:
    """torch.get_float32_matmul_precision(); empty where newer switches contradict it and torch refuses to tell."""
    try:
        return str(torch.get_float32_matmul_precision())
    except _MIXED_SWITCHES:
        return ""


def _read_settings() -> dict[str, bool | str]:
    """Every setting that torch is ready to tell."""
    found = ((name, _read(setting)) for name, setting in _SETTINGS.items())
    return {name: value for name, value in found if value is not None}


def _read(setting: _Setting) -> bool | str | None:
    try:
        return setting.read()
    except _MIXED_SWITCHES:
        # The newer settings that contradict it are among the others, and decide.
        return None


def _deviations(found: Mapping[str, bool | str]) -> dict[str, bool | str]:
    # "ieee" is what "none" comes to where nothing above says otherwise; set_float32_matmul_precision("highest") leaves
    # the one behind where torch starts with the other.
    is_unruled = found["fp32_precision"] == found["mkldnn.fp32_precision"] == "none"
    return {
        name: value
        for name, value in found.items()
        if value != _SETTINGS[name].default and not (is_unruled and value == "ieee" and name in _LEAVES)
    }


def _write_precision_and_settings(state: tuple[str, Mapping[str, bool | str]]) -> None:
    precision, values = state
    torch.set_float32_matmul_precision(precision or _MATMUL_PRECISIONS[0])
    for name, setting in _SETTINGS.items():
        # A precision that follows a general one reads like it; written, it would stay when the general one changes.
        if _read(setting) != values[name]:
            setting.write(values[name])


def _setting_value(value: bool | str) -> Value:
    return Value(boolean=value) if isinstance(value, bool) else Value(text=value)


def _decode_settings(entries: Iterable[NamedValue]) -> dict[str, bool | str]:
    values: dict[str, bool | str] = {}
    for entry in entries:
        setting = _SETTINGS.get(entry.name)
        if setting is None:
            raise InvalidRequest(f"{entry.name[:80]!r} is no switch of torch that decides a result")
        value = entry.value.boolean if isinstance(setting.default, bool) else entry.value.text
        if entry.value != _setting_value(value) or (isinstance(value, str) and value not in setting.words):
            raise InvalidRequest(f"the value of {entry.name} is not one that it can have")
        values[entry.name] = value
    return values


@contextmanager
def keeping_attention_backends() -> Iterator[None]:
    """Afterwards the choice of backends for attention, which is the process's, is as it was before."""
    before = {name: _SETTINGS[name].read() for name in _ATTENTION_BACKENDS}
    try:
        yield
    finally:
        for name, value in before.items():
            _SETTINGS[name].write(value)
