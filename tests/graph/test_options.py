"""Options reach the worker, whether a user passed them, set them globally or exported them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.options import capture_options, config_patches
from compilefarm.v1.graph_pb2 import NamedValue, Sequence, Value
from compilefarm.v1.job_pb2 import Options
from tests.lean import LEAN

_INDUCTOR = torch._inductor.config
# What processes of different environments say, as JSON. They are forks of one that has imported torch, and nothing that
# reads these variables.
_PRINT_OPTIONS = """
import json, os, sys, torch
assert "torch._inductor.config" not in sys.modules
for variables in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.environ.update(variables)
        from compilefarm.graph.bypass import Bypass
        from compilefarm.graph.options import capture_options, config_patches
        try:
            said = config_patches(capture_options({}, cuda=False))[0]
        except Bypass as why:
            said = str(why)
        print(json.dumps(said, default=str), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
_ENVIRONMENTS: dict[str, dict[str, str]] = {
    "none": {},
    "tuning": {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"},
    "no tuning": {"TORCHINDUCTOR_MAX_AUTOTUNE": "0"},
    "C++ wrapper": {"TORCHINDUCTOR_CPP_WRAPPER": "1"},
    "FX wrapper": {"TORCHINDUCTOR_FX_WRAPPER": "1"},
    "places": {"TORCHINDUCTOR_CACHE_DIR": "elsewhere", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "CXX": "c++"},
}


def _patches(**options: Any) -> tuple[dict[str, object], dict[str, object]]:
    return config_patches(capture_options(options, cuda=False))


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What a process says in each environment: what it would send, or why it sends nothing."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    environments = json.dumps(list(_ENVIRONMENTS.values()))
    command = [sys.executable, LEAN, "-c", _PRINT_OPTIONS, environments]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(_ENVIRONMENTS, map(json.loads, done.stdout.splitlines()), strict=True))


def test_nothing_is_sent_for_defaults() -> None:
    assert _patches() == ({}, {})


def test_modes_and_options_arrive() -> None:
    options = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.max_tiles": 2, "cpp.simdlen": 8}
    assert _patches(**options)[0] == options


def test_a_choice_between_kernels_for_gpus_is_no_option_on_a_cpu() -> None:
    assert _patches(**{"triton.multi_kernel": 2}) == ({}, {})


def test_global_settings_arrive_and_options_go_before_them() -> None:
    with (
        _INDUCTOR.patch({"max_autotune": True, "realize_reads_threshold": 9}),
        torch._functorch.config.patch({"activation_memory_budget": 0.5}),
    ):
        inductor, functorch = _patches(realize_reads_threshold=11)
    assert inductor == {"max_autotune": True, "realize_reads_threshold": 11}
    assert functorch == {"activation_memory_budget": 0.5}


def test_patches_can_be_applied() -> None:
    inductor, functorch = _patches(max_autotune=True, **{"cpp.simdlen": None, "memory_pool": "none"})
    with _INDUCTOR.patch(inductor), torch._functorch.config.patch(functorch):
        assert (_INDUCTOR.max_autotune, _INDUCTOR.memory_pool) == (True, "none")


@pytest.mark.parametrize("mode", [mode for mode in torch._inductor.list_mode_options() if mode != "default"])
def test_all_of_a_mode_arrives_but_cuda_graphs_on_a_cpu(mode: str) -> None:
    options = torch._inductor.list_mode_options()[mode]
    inductor, _ = config_patches(capture_options(options, cuda=True))
    assert inductor.get("triton.cudagraphs", False) == options.get("triton.cudagraphs", False)
    sent = {name: value for name, value in options.items() if name != "triton.cudagraphs"}
    assert _patches(**options)[0] == {
        name: value for name, value in sent.items() if settings.defaults(_INDUCTOR)[name] != value
    }


REFUSED: dict[str, object] = {
    "cpp_wrapper": True,
    "freezing": True,
    "fx_wrapper": True,
    "cpu_backend": "triton",
    "cuda_backend": "pallas",
    "cpp.inject_relu_bug_TESTING_ONLY": "compile_error",
    "triton.inject_relu_bug_TESTING_ONLY": "compile_error",
    "lookup_table.table": {},
    "autotune_lookup_table": {"x": 1},
    "pre_grad_fusion_options": {"batch_linear": {}},
    "post_grad_fusion_options": {"batch_linear": {}},
    "assert_indirect_indexing": False,
    "scalar_asserts": False,
    "size_asserts": False,
    "post_grad_custom_pre_pass": print,
    "reorder_for_compute_comm_overlap_passes": ["exec"],
    "_fuse_ddp_communication_passes": ["exec"],
    "external_matmul": [print],
    "inductor_choices_class": object,
    "disabled_passes": "anything",
    "estimate_op_runtime": print,
    "comment_origin": True,
    "debug_index_asserts": True,
    "cuda.compile_opt_level": "-O3",
    "cuda.version": "12",
    "aot_inductor.output_path": "somewhere",
    "cpp.gemm_cache_blocking": "1,1,1",
    "test_configs.autotune_choice_name_regex": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_pod_that_set_what_no_request_may_compiles_by_itself_and_says_which(name: str) -> None:
    with pytest.raises(Bypass, match=re.escape(name)) as caught:
        capture_options({name: REFUSED[name]}, cuda=False)
    assert caught.value.reason == "refused_option"
    with _INDUCTOR.patch({name: REFUSED[name]}), pytest.raises(Bypass, match=re.escape(name)):
        capture_options({}, cuda=False)


@pytest.mark.parametrize("name", REFUSED)
def test_a_worker_refuses_what_no_request_may_set(name: str) -> None:
    for value in (Value(boolean=True), Value(text="x"), Value(integer=1)):
        with pytest.raises(InvalidRequest, match=re.escape(name)):
            config_patches(Options(inductor=[NamedValue(name=name, value=value)]))


WRONG: tuple[tuple[str, object], ...] = (
    ("max_autotune", 1),
    ("max_autotune", "True"),
    ("triton.max_tiles", True),
    ("triton.max_tiles", 4),
    ("realize_reads_threshold", -1),
    ("realize_reads_threshold", 1 << 40),
    ("cpp.simdlen", "8"),
    ("cpu_gpu_bw", float("nan")),
    ("cpu_gpu_bw", float("inf")),
    ("max_autotune_gemm_backends", "ATEN,CUTLASS"),
    ("max_autotune_gemm_backends", "ATEN,ATEN"),
    ("max_autotune_gemm_backends", "ATEN -fplugin=evil.so"),
    ("cpp.enable_floating_point_contract_flag", "off\n"),
    ("cpp.descriptive_names", "original_aten;"),
    ("memory_pool", ""),
)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_of_another_type_or_range(name: str, value: object) -> None:
    with pytest.raises(Bypass, match=re.escape(name)) as caught:
        capture_options({name: value}, cuda=False)
    assert caught.value.reason == "custom_option"
    with pytest.raises(InvalidRequest, match=re.escape(name)):
        config_patches(Options(inductor=[NamedValue(name=name, value=_any_value(value))]))


def _any_value(value: object) -> Value:
    kinds = {bool: "boolean", int: "integer", float: "real", str: "text"}
    return Value(**{kinds[type(value)]: value})  # type: ignore[arg-type]


def test_a_worker_refuses_values_that_are_no_scalars_and_settings_that_are_there_twice() -> None:
    for value in (Value(), Value(list=Sequence()), Value(node=0), Value(big_integer="1"), Value(dtype="float32")):
        with pytest.raises(InvalidRequest, match="max_autotune has to be true or false"):
            config_patches(Options(inductor=[NamedValue(name="max_autotune", value=value)]))
    entry = NamedValue(name="max_autotune", value=Value(boolean=True))
    with pytest.raises(InvalidRequest, match="twice"):
        config_patches(Options(inductor=[entry, entry]))


@pytest.mark.parametrize(
    "name",
    [
        "fx_graph_cache",
        "compile_threads",
        "trace.enabled",
        "worker_start_method",
        "cpp.cxx",
        "global_cache_dir",
        "aot_inductor.metadata",
    ],
)
def test_what_cannot_change_a_result_stays_here(name: str) -> None:
    with _INDUCTOR.patch({name: "something else"}):
        assert _patches() == ({}, {})


def test_settings_from_the_environment_arrive(said: dict[str, Any]) -> None:
    # torch takes both for its own defaults: nothing in the process tells them from untouched ones.
    assert said["none"] == {}
    assert said["tuning"]["max_autotune"] is True
    assert said["tuning"]["epilogue_fusion"] is True
    assert said["no tuning"]["max_autotune"] is False


@pytest.mark.parametrize(("name", "setting"), [("C++ wrapper", "cpp_wrapper"), ("FX wrapper", "fx_wrapper")])
def test_settings_from_the_environment_are_refused_all_the_same(said: dict[str, Any], name: str, setting: str) -> None:
    # Such a setting is at its default, which the variable has changed.
    assert f"the setting {setting} differs" in said[name]


def test_variables_that_only_name_places_do_not_matter(said: dict[str, Any]) -> None:
    assert said["places"] == {}
