"""Settings of the compiler: what the user asked for and what the process deviates in from torch's defaults.

A setting is in one of three classes. Most are sent. Some cannot change a result and are left out. Some name programs,
files or flags of a machine, or belong to backends that the farm does not run: a client that sets one compiles locally,
and a worker refuses one that is sent all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import ModuleType

import torch._functorch.config
import torch._inductor.config

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.literals import ValueDecoder, ValueEncoder
from compilefarm.v1.graph_pb2 import NamedValue
from compilefarm.v1.job_pb2 import Options
from compilefarm.v1.request_file_pb2 import CompileArguments
from compilefarm.v1.vocabulary_pb2 import Mode

_INDUCTOR = torch._inductor.config
_FUNCTORCH = torch._functorch.config
_WITHOUT_EFFECT = (
    # Caches: what is kept for a later compile, and where.
    "_cache_config_ignore_prefix", "_save_config_ignore", "autograd_cache_", "autotune_local_cache",
    "autotune_remote_cache", "bundle_triton_into_fx_graph_cache", "bundled_auto", "bypass_autograd_cache_key",
    "cpp_cache_precompile_headers", "enable_autograd_cache", "enable_caching_generated_triton_templates",
    "enable_remote_autograd_cache", "force_autograd_cache", "force_disable_caches", "fx_graph_", "global_cache_dir",
    "non_blocking_remote_cache_write", "remote_gemm_autotune_cache", "search_autotune_cache", "strict_autograd_cache",
    # The processes that compile.
    "compile_threads", "compile_worker_", "file_lock_timeout", "quiesce_async_compile_", "torchinductor_worker_logpath",
    "worker_",
    # What is printed, drawn, dumped or measured on the way.
    "_profile_var", "autoheuristic_log_path", "autotune_num_choices_displayed", "debug", "developer_warnings",
    "disable_progress", "enabled_metric_tables", "log_tlparse", "max_autotune_report_choices_stats",
    "memory_budget_pareto_dir", "profile_bandwidth", "reorder_for_peak_memory_debug", "save_args",
    "torch_compile_graph_format", "trace.", "triton.debug_dump_kernel_inputs", "triton.max_kernel_dump_occurrences",
    "triton.proton_", "verbose_progress", "visualize_memory_budget_pareto",
    # CUDA graphs are recorded by the process that runs a result; asking for them is a bypass of its own.
    "cudagraph_", "triton.cudagraph",
    # The worker decides these, by its machine or by what an artifact needs.
    "TYPE_CHECKING", "cpp.cxx", "cpp.vec_isa_ok", "force_non_lazy_backward_lowering", "is_nightly_or_source",
)  # fmt: skip
_REFUSED = (
    # Programs, files and flags of a machine.
    "cpp.march", "aten_distributed_optimizations.profile_guided_estimations_profile_path",
    # Functions of torch that Inductor looks up by the text of the setting.
    "_fuse_ddp_communication_passes", "reorder_for_compute_comm_overlap_passes",
    # Other programs than the one that a farm makes: AOTInductor, CUTLASS, Halide, ROCm, XPU.
    "aot_inductor", "cuda.", "cutlass.", "halide.", "rocm.", "xpu.",
    # torch's own tests.
    "test_configs.",
)  # fmt: skip
_CUDA_GRAPHS = "triton.cudagraphs"
# Several kernels for one thing, of which the first call in each process measures and picks one
# (torch/_inductor/codegen/multi_kernel.py); a pick that is forced is read from the settings of that process.
_MULTI_KERNEL = "triton.multi_kernel"
# Some texts become flags of a compiler: none may hold a second flag or a path.
_PLAIN_TEXT = re.compile(r"[\w.,:*|+-]*")


def capture_options(user_options: Mapping[str, object], *, cuda: bool) -> Options:
    """What differs from torch's defaults, by user's wish or in this process.

    Args:
        user_options: Inductor options from mode= and options= of torch.compile.
        cuda: whether the job computes on a GPU.

    Raises:
        Bypass: an option is not known (a local compile says so in torch's own words), is not a literal, names things of
            this machine, or asks for what no artifact can hold: CUDA graphs, a choice of kernels at the first call.
    """
    wanted = {name.replace("-", "_"): value for name, value in user_options.items()}
    known = settings.defaults(_INDUCTOR)
    for name in wanted:
        if name not in known:
            raise Bypass("unknown_option", f"torch {torch.__version__} has no Inductor option {name!r}")
    inductor = settings.values(_INDUCTOR) | wanted
    if cuda and inductor[_CUDA_GRAPHS]:
        raise Bypass("cuda_graphs", "CUDA graphs are asked for; use a mode or options without them")
    if cuda and inductor[_MULTI_KERNEL]:
        raise Bypass("multi_kernel", f"{_MULTI_KERNEL} has each process measure kernels at its first call; set it to 0")
    return Options(
        inductor=_deviations(_INDUCTOR, now=inductor),
        functorch=_deviations(_FUNCTORCH, now=settings.values(_FUNCTORCH)),
    )


def config_patches(options: Options) -> tuple[dict[str, object], dict[str, object]]:
    """What to hand to torch._inductor.config.patch and torch._functorch.config.patch.

    Raises:
        InvalidRequest: a setting is not known to this torch, or is none that a request may make.
    """
    return _patch(_INDUCTOR, options.inductor), _patch(_FUNCTORCH, options.functorch)


def capture_arguments(*, mode: str | None, user_options: Mapping[str, object]) -> CompileArguments:
    """How torch.compile was called, for a request that `capture_options` could say.

    Args:
        mode: as in torch.compile.
        user_options: its options, without those that the mode stands for.
    """
    named = {name.replace("-", "_"): value for name, value in user_options.items()}
    mode = "" if mode in (None, "default") else mode
    return CompileArguments(
        mode=mode,
        mode_settings=sorted(torch._inductor.list_mode_options(mode)) if mode else (),
        options=_said(named),
        settings_from_variables=any(map(settings.heeds_environment, (_INDUCTOR, _FUNCTORCH))),
    )


def describe_settings() -> tuple[list[NamedValue], list[NamedValue]]:
    """Every setting that a request may make, of Inductor and of functorch, with its default where that can be said."""
    return _defaults_of(_INDUCTOR), _defaults_of(_FUNCTORCH)


def describe_modes() -> list[Mode]:
    """What each mode of torch.compile stands for."""
    return [
        Mode(name=name, options=_said(options), cuda_graphs=bool(options.get(_CUDA_GRAPHS)))
        for name, options in torch._inductor.list_mode_options().items()
        if name != "default"
    ]


def _said(options: Mapping[str, object]) -> list[NamedValue]:
    # What a request refuses, or cannot say, is at its default in one that could be made.
    names = (name for name in sorted(options) if not name.startswith((*_WITHOUT_EFFECT, *_REFUSED)))
    return [_encode(name, options[name]) for name in names if _is_literal(options[name])]


def _defaults_of(config: ModuleType) -> list[NamedValue]:
    known = settings.defaults(config)
    names = sorted(name for name in known if not name.startswith((*_WITHOUT_EFFECT, *_REFUSED)))
    return [_encode(name, known[name]) if _is_literal(known[name]) else NamedValue(name=name) for name in names]


def _deviations(config: ModuleType, *, now: Mapping[str, object]) -> list[NamedValue]:
    defaults = settings.defaults(config)
    send_all = settings.heeds_environment(config)
    found = []
    for name in sorted(now):
        if name.startswith(_WITHOUT_EFFECT):
            continue
        is_default = type(now[name]) is type(defaults[name]) and now[name] == defaults[name]
        if is_default and (not send_all or name.startswith(_REFUSED) or not _is_literal(now[name])):
            continue
        found.append(_encode(name, now[name]))
    return found


def _encode(name: str, value: object) -> NamedValue:
    if name.startswith(_REFUSED):
        raise Bypass("refused_option", f"the setting {name} differs from its default; the farm does not take it")
    entry = NamedValue(name=name)
    try:
        ValueEncoder(numbers={}, devices=None).write(value, into=entry.value)
    except Bypass as error:
        raise Bypass("custom_option", f"the setting {name} cannot be sent: {error}") from None
    if not _is_plain(value):
        raise Bypass("custom_option", f"the setting {name} holds a text that is more than one word: {value!r}")
    return entry


def _is_literal(value: object) -> bool:
    try:
        ValueEncoder(numbers={}, devices=None).write(value, into=NamedValue().value)
    except Bypass:
        return False
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    return not isinstance(value, str) or _PLAIN_TEXT.fullmatch(value) is not None


def _patch(config: ModuleType, entries: Iterable[NamedValue]) -> dict[str, object]:
    patch = ValueDecoder(nodes=()).read_named(list(entries))
    known = settings.defaults(config)
    for name, value in patch.items():
        if name not in known:
            raise InvalidRequest(f"torch {torch.__version__} has no setting {name[:80]!r} in {config.__name__}")
        if name.startswith((*_WITHOUT_EFFECT, *_REFUSED)):
            raise InvalidRequest(f"{name} is no setting that a request may make")
        if not _is_plain(value):
            raise InvalidRequest(f"the setting {name} holds a text that is more than one word")
    return patch
