"""Canaries: each says what broke when a release moves a private name that artifact/ leans on."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import subprocess
import sys

import pytest

from compilefarm.artifact.inductor import libraries, programs
from compilefarm.artifact.inductor.programs import not_serializable_error


def test_standalone_compile_can_make_one_serializable_program() -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    assert {"dynamic_shapes", "options", "aot"} <= set(inspect.signature(module.standalone_compile).parameters), (
        "inductor.compile_to_program calls standalone_compile(dynamic_shapes=, options=, aot=True)"
    )
    for name in ("serialize", "deserialize"):
        assert hasattr(module.AOTCompiledArtifact, name), f"finish_program/deserialize_program use {name}"


def test_cpp_is_built_through_load_async() -> None:
    cache = importlib.import_module("torch._inductor.codecache").CppCodeCache
    libraries._listen_to_builds()
    assert cache.load_async.__func__.compilefarm
    for kind in ("CppPythonBindingsCodeCache", "CppWrapperCodeCache"):
        other = getattr(importlib.import_module("torch._inductor.codecache"), kind)
        assert other.load_async.__func__ is cache.load_async.__func__, f"{kind} builds in a way that is not listened to"
    assert list(inspect.signature(cache._load_library).parameters) == ["path", "key"], (
        "using_libraries loads with _load_library(path, key)"
    )


def test_the_compiler_is_tried_through_check_build() -> None:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    assert list(inspect.signature(module.VecISA.check_build).parameters) == ["self", "code"], (
        "run_build_trials and replay_build_trials stand in for VecISA.check_build(self, code)"
    )
    assert all(hasattr(isa, "_arch_flags") for isa in module.supported_vec_isa_list), "trials are told apart by it"
    assert callable(module.valid_vec_isa_list)


def test_settings_that_a_compile_and_a_load_rely_on_exist() -> None:
    functorch = importlib.import_module("torch._functorch.config")
    for name in ("strict_autograd_cache", "force_non_lazy_backward_lowering"):
        assert hasattr(functorch, name), f"compile_to_program sets torch._functorch.config.{name}"
    config = importlib.import_module("torch._inductor.config")
    assert hasattr(config.triton, "cudagraphs"), "deserialize_program sets it"
    assert hasattr(config, "compile_threads"), "deserialize_program sets it"
    assert issubclass(not_serializable_error(), Exception)


def test_a_cached_graph_is_reloaded_in_one_place() -> None:
    cache = importlib.import_module("torch._inductor.codecache")
    parameters = inspect.signature(cache.FxGraphCache.cache_hit_post_compile).parameters
    assert list(parameters) == ["graph", "cache_info", "constants"], "_without_the_compiler stands in for it"
    assert callable(cache.code_hash), "a finished wrapper is named by it"
    bundler = importlib.import_module("torch._inductor.triton_bundler").TritonBundler
    assert list(inspect.signature(bundler.read_and_emit).parameters) == ["bundle"], "it puts kernels into place"
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    assert list(inspect.signature(graph.after_deserialization).parameters) == ["self", "constants"]


def test_what_a_finished_program_does_without_is_where_it_was() -> None:
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    entry = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result").BundledAOTAutogradResult
    fields = {field.name for kind in (graph, entry) for field in dataclasses.fields(kind)}
    wanted = {*programs._LOGGED_BY_GRAPH, *programs._LOGGED_BY_ENTRY, "source_code", "cache_key", "fx_kwargs"}
    assert wanted | {"compiled_fw", "compiled_bw", "_triton_bundle"} <= fields, "finish_program finishes these"


def test_dynamo_compiles_under_a_lock_that_a_thread_may_take_twice() -> None:
    with programs.compile_lock(), programs.compile_lock():
        pass
    assert programs.compile_lock() is importlib.import_module("torch._dynamo.convert_frame").compile_lock


def test_triton_builds_through_functions_of_its_driver() -> None:
    pytest.importorskip("triton")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    assert hasattr(driver, "library_dirs"), "triton_builds keeps library_dirs from starting ldconfig"
    builders = [name for name in ("compile_module_from_src", "compile_module_from_file") if hasattr(driver, name)]
    assert builders, "Triton builds cuda_utils in another way: artifacts for CUDA would need a C compiler"


def test_kernels_of_triton_are_kept_as_inductor_keeps_them() -> None:
    pytest.importorskip("triton")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    autotuner = heuristics.CachingAutotuner
    for name in ("prepare_for_pickle", "restore_after_unpickle", "_make_launchers", "_precompile_config", "bench"):
        assert callable(getattr(autotuner, name)), f"kernels.py uses CachingAutotuner.{name}"
    attributes = inspect.getsource(autotuner)
    for name in (
        "compile_results",
        "launchers",
        "inductor_meta",
        "coordesc_tuner",
        "save_cache_hook",
        "_reload_kernel",
    ):
        assert f"self.{name}" in attributes, f"kernels.py uses CachingAutotuner.{name}"
    assert "cubin_path" in inspect.getsource(heuristics.StaticTritonCompileResult.make_launcher)
    assert callable(heuristics.triton_hash_to_path_key)
    static = inspect.getsource(importlib.import_module("torch._inductor.runtime.static_triton_launcher"))
    for name in ("cubin_raw", "cubin_path", "function", "C_impl"):
        assert f"{name}" in static, f"kernels.py uses {name} of a statically launched kernel"
    assert callable(importlib.import_module("torch._inductor.runtime.runtime_utils").triton_cache_dir)
    compiled = importlib.import_module("triton.compiler").CompiledKernel
    assert all(name in inspect.getsource(compiled) for name in ("metadata_group", "self._run", "self.asm"))


_ASSEMBLERS = """
import importlib, os
from compilefarm.artifact.inductor import kernel_compiles
kernel_compiles.use_their_assembler()
here = os.environ.pop("TRITON_PTXAS_PATH", "")
compiling = importlib.import_module("torch._inductor.async_compile")
kernel_compiles.start()
there = compiling.AsyncCompile.process_pool().submit(os.getenv, "TRITON_PTXAS_PATH", "").result(timeout=120)
compiling.shutdown_compile_workers()
print([here, there])
"""


@pytest.mark.compiles
def test_kernels_are_assembled_alike_here_and_where_they_are_compiled() -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ASSEMBLERS],
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
    )
    here, there = ast.literal_eval(said.stdout.splitlines()[-1])
    assert here == there, "kernel_compiles.use_their_assembler sets what torch/_inductor/compile_worker sets"
