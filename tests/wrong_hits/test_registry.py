"""Canaries: whatever a next torch or Triton lets decide a result, somebody has to say what becomes of it."""

from __future__ import annotations

import ast
import inspect
import mmap
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch.fx.experimental._config
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails
from torch._inductor.codecache import FxGraphHashDetails

from compilefarm.core.dynamo_settings import DYNAMO, SYMBOLIC_SHAPES
from compilefarm.core.treatment import Treatment
from compilefarm.core.triton_knobs import KNOBS
from compilefarm.core.variables import VARIABLES
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.knobs import knob_names
from compilefarm.graph.testing import capture

from .rows import ROWS, square

_IS_NEWEST = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
# What works on a graph once Dynamo has handed it over.
COMPILERS = (
    "_decomp", "_functorch", "_higher_order_ops", "_inductor", "_library", "_prims", "_prims_common", "_refs",
    "_subclasses", "backends/cudnn", "functional.py", "fx", "nn/attention", "nn/functional.py",
    *(["_native"] if _IS_NEWEST else []),
)  # fmt: skip
# Their variables are seen as the settings that they give.
CONFIGURATIONS = re.compile(r"_?config(_\w+)?\.py|test_case\.py")
READ = re.compile(r"""(?:environ(?:\.get)?\s*[\[(]|getenv\()\s*["'](\w+)["']""")
# How a variable of torch or of a library within it is named, as a text between zeros.
NAMED_IN_BINARIES = re.compile(
    rb"\0((?:ATEN|CUDNN_FRONTEND|DISABLE|DNNL|NVIDIA|ONEDNN|PYTORCH|TORCH|USE)_[A-Z0-9_]{2,})(?=\0)"
)
# So are named macros, and flags of a build that torch tells.
NO_VARIABLES = {
    "TORCH_CHECK_TENSOR_SUBTYPE", "TORCH_FUNCTION_MODE_STACK", "TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT",
    "TORCH_LIBRARY_IMPL", "USE_EIGEN_FOR_BLAS", "USE_GFLAGS", "USE_HIPSPARSELT", "USE_ITT", "USE_MKLDNN", "USE_NCCL",
    "USE_ROCM_KERNEL_ASSERT", "USE_XPU",
}  # fmt: skip

SENT = "it is sent: "
REFUSED = "a pod that sets it does not ask: "
# Everything that torch's own caches hash, and what we do with it.
HASHED_BY_INDUCTOR = {
    "gm": SENT + "the graph",
    "example_inputs": SENT + "the inputs",
    "fx_kwargs": "the worker calls the compiler in one way; gradients and CUDA graphs have switches of their own",
    "inputs_to_check": "follows from the inputs",
    "cache_key_tag": "is a name for torch's caches",
    "user_defined_triton_source": SENT + "the kernels",
    "default_cuda_device_index": "devices are numbered within a request, and programs are moved when they are loaded",
    "default_dtype": SENT + "Ambient.default_dtype",
    "deterministic_algorithms_settings": SENT + "Ambient.deterministic_algorithms, fill_uninitialized_memory",
    "cpp_runtime_thread_count": SENT + "Ambient.cpu_threads",
    "cuda_matmul_settings": SENT + "Ambient.backends",
    "provenance_tracking_level": "is about what is told of a program",
    "provenance_tracking_to_timeline": "is about what is told of a program",
    "compile_on_one_rank": REFUSED + "custom_compiler",
    "cudagraph_annotation": REFUSED + "it is noted beside the graph",
    "cudagraph_override": REFUSED + "it is noted beside the graph",
    "nested_inductor_config_patches": REFUSED + "it is noted beside nodes",
    "torch_version": SENT + "Environment.torch, Environment.torch_build",
    "system_info": SENT + "Environment.cuda, Environment.triton",
    "inductor_config": SENT + "Options.inductor",
    "inductor_config_comms": "is read by passes that reorder collectives, which no request may name",
    "precompile_enabled": "is about torch's caches; the worker decides it",
    "var_to_hint_override": "is which size a compile tunes for; hints choose among variants and enter no key",
    "pre_grad_custom_pass": REFUSED + "an option",
    "post_grad_custom_pre_pass": REFUSED + "an option",
    "post_grad_custom_post_pass": REFUSED + "an option",
    "joint_custom_pre_pass": REFUSED + "an option",
    "joint_custom_post_pass": REFUSED + "an option",
    "_pre_fusion_custom_pass": REFUSED + "an option",
    "_post_fusion_custom_pass": REFUSED + "an option",
    "_fuse_ddp_communication_passes": REFUSED + "an option",
    "_custom_partitioner_fn": REFUSED + "an option",
    "custom_backend_passes": REFUSED + "custom_compiler",
    "custom_backend_codegen_configs": REFUSED + "custom_compiler",
    "custom_backend_codegen_implications": REFUSED + "custom_compiler",
}
HASHED_BY_AUTOGRAD = {
    "aot_config": "the worker calls AOTAutograd in one way",
    "act_input_paths": "follows from the inputs, which are plain tensors",
    "grad_enabled": SENT + "Ambient.grad_enabled",
    "disable_amp": SENT + "Ambient.autocast",
    "autocast_state": SENT + "Ambient.autocast, with the dtype while it is off",
    "deterministic_algorithms": SENT + "Ambient.deterministic_algorithms",
    "autograd_config": SENT + "Options.functorch",
    "saved_tensors_hooks_fx_wrap_cache_hashes": REFUSED + "saved_tensors_hooks",
    "sac_context_fn_hashes": REFUSED + "it is noted beside the graph",
    "region_activation_memory_budget_annotations": SENT + "Node.annotations",
    "custom_estimator_solver_uuids": REFUSED + "an option that is a function",
    "triton_kernel_source_codes": SENT + "CustomOperator.source_digest",
}


BYPASS = Treatment.BYPASS
DYNAMOS: tuple[tuple[Any, Mapping[str, tuple[Treatment, str]]], ...] = (
    (torch._dynamo.config, DYNAMO),
    (torch.fx.experimental._config, SYMBOLIC_SHAPES),
)
READ_OF_DYNAMO = re.compile(r"(?:torch\._dynamo\.config|\bdynamo_config)\.([a-z_]+)")
# What compilers read of Dynamo's settings, and why it decides nothing.
AFTER_DYNAMO = {
    "_custom_ops_profile": REFUSED + "custom_option",
    **dict.fromkeys(("allow_empty_graphs", "capture_scalar_outputs"), "is set there, and set back"),
    **dict.fromkeys(("automatic_dynamic_exclusion_guard", "enable_compiler_collectives"), "decides what is guarded"),
    **dict.fromkeys(("caching_precompile", "strict_precompile"), "is about torch's caches"),
    **dict.fromkeys(("debug_dir_root", "record_runtime_overhead"), "is about what is kept and measured"),
    **dict.fromkeys(("fake_tensor_cache_enabled", "fake_tensor_cache_crosscheck_enabled"), "is a cache of shapes"),
    "force_compile_during_fx_trace": "decides whether a call within a trace is compiled",
    **dict.fromkeys(
        ("leaf_function_check_escaped_gradients", "leaf_function_validate_outputs"),
        "is about functions that graphs call as they are, which no request holds",
    ),
    "inline_inbuilt_nn_modules": "is about CUDA graphs",
    "patch": "sets others",
    "skip_fsdp_hooks": "decides whether Dynamo traces what gathers parameters",
    "suppress_errors": "is set to false there",
    "use_lazy_graph_module": "decides when the code of a graph is made",
}


def files_of(part: str) -> list[Path]:
    path = Path(torch.__file__).parent / part
    return list(path.rglob("*.py")) if path.is_dir() else [path]


def variables_read() -> Iterator[tuple[str, Path]]:
    root = Path(torch.__file__).parent
    for part in COMPILERS:
        for path in files_of(part):
            if not CONFIGURATIONS.fullmatch(path.name):
                yield from ((name, path.relative_to(root)) for name in READ.findall(path.read_text()))


def test_variables_that_compilers_read() -> None:
    unknown = {f"{name} in torch/{path}" for name, path in variables_read() if name not in VARIABLES}
    assert not unknown, "say in core/variables.py what becomes of them"


def variables_named_in_binaries() -> Iterator[tuple[str, str]]:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*.so")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield from ((name.decode(), path.name) for name in NAMED_IN_BINARIES.findall(content))


def test_variables_that_torchs_binaries_name() -> None:
    found = dict(variables_named_in_binaries())
    assert "TORCH_SHOW_CPP_STACKTRACES" in found
    unknown = {f"{name} in {file}" for name, file in found.items() if name not in {*VARIABLES, *NO_VARIABLES}}
    assert not unknown, "say in core/library_variables.py what becomes of them"


def test_variables_say_what_they_decide_or_why_nothing() -> None:
    assert all(variable.reason and variable.read_in for variable in VARIABLES.values())


def test_knobs_of_triton() -> None:
    assert not {*knob_names()} - KNOBS.keys(), "say in core/triton_knobs.py what becomes of them"


@pytest.mark.parametrize(("config", "table"), DYNAMOS, ids=["Dynamo", "symbolic shapes"])
def test_settings_of_dynamo(config: Any, table: Mapping[str, tuple[Treatment, str]]) -> None:
    assert not config._config.keys() - table.keys(), "say in core/dynamo_settings.py what becomes of them"


@pytest.mark.skipif(not _IS_NEWEST, reason="releases before the newest lack later settings")
@pytest.mark.parametrize(("config", "table"), DYNAMOS, ids=["Dynamo", "symbolic shapes"])
def test_settings_of_dynamo_that_are_listed_exist(config: Any, table: Mapping[str, tuple[Treatment, str]]) -> None:
    assert table.keys() - config._config.keys() <= {"skip_fsdp_hooks"}


def test_what_is_read_of_dynamos_settings_after_dynamo() -> None:
    # Where they are read, nobody asks what decides before the graph is there.
    read = {name for part in COMPILERS for path in files_of(part) for name in READ_OF_DYNAMO.findall(path.read_text())}
    assert not read - AFTER_DYNAMO.keys(), "does it decide what a graph is compiled to?"


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for config, table in DYNAMOS for name, (treatment, _) in table.items() if treatment is BYPASS],
)
def test_a_setting_of_dynamo_of_one_pod(config: Any, name: str) -> None:
    if name not in config._config:
        pytest.skip(f"this torch has no {name}")
    graph = capture(square, torch.rand(4, 4))
    now = getattr(config, name)
    with config.patch({name: not now if isinstance(now, bool) else 1}), pytest.raises(Bypass, match=name):
        graph.encode()
    graph.encode()


def hashed(kind: type) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


@pytest.mark.parametrize(
    ("kind", "known"),
    [(FxGraphHashDetails, HASHED_BY_INDUCTOR), (AOTAutogradCacheDetails, HASHED_BY_AUTOGRAD)],
    ids=["Inductor", "AOTAutograd"],
)
def test_what_torch_hashes(kind: type, known: dict[str, str]) -> None:
    found = hashed(kind)
    assert found
    assert not found - known.keys(), "torch tells graphs apart by it; do we, or why not?"


def test_a_setting_that_nobody_has_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(VARIABLES, "ATEN_CPU_CAPABILITY")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"ATEN_CPU_CAPABILITY in torch/_inductor/cpu_vec_isa\.py"):
        test_variables_that_compilers_read()


def test_a_pass_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codegen import common

    graph = capture(square, torch.rand(4, 4))
    assert settings.find_further_compiler_part() is None
    monkeypatch.setitem(common.custom_backend_passes, "cpu", object())
    with pytest.raises(Bypass, match="custom_backend_passes"):
        graph.encode()


def test_there_are_enough_rows() -> None:
    assert len(ROWS) >= 42
