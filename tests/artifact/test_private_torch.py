"""Canaries: each says what broke when a release moves a private name that artifact/ leans on."""

from __future__ import annotations

import importlib
import inspect

import pytest

from compilefarm.artifact import inductor


def test_standalone_compile_can_make_one_serializable_program() -> None:
    module = importlib.import_module("torch._inductor.standalone_compile")
    assert {"dynamic_shapes", "options", "aot"} <= set(inspect.signature(module.standalone_compile).parameters), (
        "inductor.compile_to_program calls standalone_compile(dynamic_shapes=, options=, aot=True)"
    )
    for name in ("serialize", "deserialize"):
        assert hasattr(module.AOTCompiledArtifact, name), f"serialize_program/deserialize_program use {name}"


def test_cpp_is_built_through_load_async() -> None:
    cache = importlib.import_module("torch._inductor.codecache").CppCodeCache
    inductor._listen_to_builds()
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
    assert issubclass(inductor.not_serializable_error(), Exception)


def test_triton_builds_through_functions_of_its_driver() -> None:
    pytest.importorskip("triton")
    driver = importlib.import_module("triton.backends.nvidia.driver")
    assert hasattr(driver, "library_dirs"), "triton_builds keeps library_dirs from starting ldconfig"
    builders = [name for name in ("compile_module_from_src", "compile_module_from_file") if hasattr(driver, name)]
    assert builders, "Triton builds cuda_utils in another way: artifacts for CUDA would need a C compiler"
