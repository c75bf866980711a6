"""Canaries of torch_internals/autotuners.py, and of what the builder and the loader read of kernels."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from compilefarm.builder import kernels
from compilefarm.torch_internals.autotuners import (
    cache_folder,
    compile_configuration,
    forget_source,
    import_launcher,
    is_autotuner,
    is_launched_by_inductor,
    make_launchers,
    without_launches,
)

pytest.importorskip("triton")


def test_kernels_are_told_by_their_classes() -> None:
    import_launcher()
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    assert is_autotuner(object.__new__(heuristics.CachingAutotuner))
    assert is_launched_by_inductor(object.__new__(heuristics.StaticTritonCompileResult))
    assert not is_autotuner(object())
    assert not is_launched_by_inductor(object())


def test_configurations_are_compiled_and_launched_by_methods_of_a_kernel() -> None:
    autotuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    asked: list[object] = []
    kernel = object.__new__(autotuner)
    kernel._precompile_config, kernel._make_launchers = asked.append, lambda: asked.append("launchers")
    compile_configuration(kernel, "config")
    make_launchers(kernel)
    assert asked == ["config", "launchers"]
    assert callable(autotuner._precompile_config)
    assert callable(autotuner._make_launchers)


def test_what_would_compile_a_kernel_again_is_dropped() -> None:
    autotuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    assert "self._reload_kernel" in inspect.getsource(autotuner)
    kernel = SimpleNamespace(_reload_kernel=print, fn=len)
    forget_source(kernel)
    assert vars(kernel) == {"fn": len}


def test_what_was_found_out_at_a_launch_is_left_out() -> None:
    compiled = inspect.getsource(importlib.import_module("triton.compiler").CompiledKernel)
    assert all(
        name in compiled for name in ("self._run", "self.module", "metadata_group", "self.asm", "self.src = src")
    )
    left = without_launches(SimpleNamespace(_run=print, _module_pid=1, name="kernel"))
    assert left == {"_run": None, "_module_pid": None, "name": "kernel"}


def test_configurations_lie_in_a_folder_by_their_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert cache_folder("ab" * 32, device=0).parent == tmp_path


def test_kernels_of_triton_are_kept_as_inductor_keeps_them() -> None:
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    autotuner = heuristics.CachingAutotuner
    for name in ("prepare_for_pickle", "restore_after_unpickle", "bench"):
        assert callable(getattr(autotuner, name)), f"kernels.py uses CachingAutotuner.{name}"
    attributes = inspect.getsource(autotuner)
    for name in (
        "compile_results",
        "launchers",
        "inductor_meta",
        "coordesc_tuner",
        "save_cache_hook",
    ):
        assert f"self.{name}" in attributes, f"kernels.py uses CachingAutotuner.{name}"
    assert "cubin_path" in inspect.getsource(heuristics.StaticTritonCompileResult.make_launcher)
    static = inspect.getsource(importlib.import_module("torch._inductor.runtime.static_triton_launcher"))
    for name in ("cubin_raw", "cubin_path", "function", "C_impl"):
        assert f"{name}" in static, f"kernels.py uses {name} of a statically launched kernel"
    assert callable(importlib.import_module("torch._inductor.runtime.runtime_utils").triton_cache_dir)
    compiled = importlib.import_module("triton.compiler").CompiledKernel
    assert all(name in inspect.getsource(compiled) for name in ("metadata_group", "self._run", "self.asm"))


def test_inductor_compiles_kernels_through_an_attribute_of_triton() -> None:
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    source = inspect.getsource(heuristics.CachingAutotuner)
    assert "triton.compile(*compile_args, **compile_kwargs)" in source, (
        "count_kernel_work puts a counter in the place of triton.compile: called in another way, its count stays 0"
    )
    assert "import triton\n" in inspect.getsource(importlib.import_module("torch._inductor.runtime.triton_compat"))
    assert heuristics.triton is importlib.import_module("triton")
    assert "self.bench(" in source, "count_kernel_work counts calls of CachingAutotuner.bench"


def test_what_a_finished_kernel_sets_and_leaves_out_is_where_it_was() -> None:
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    source = inspect.getsource(heuristics.CachingAutotuner)
    names = ("configs", "filename", "autotune_cache_info", "device_props", "triton_meta", "fn", *kernels._BOOKKEEPING)
    for name in names:
        assert re.search(rf"self\.{name}\b.* = ", source), f"kernels.py sets CachingAutotuner.{name}"
    for name in ("kernel", "config", "compile_meta"):
        assert f"self.{name} = " in inspect.getsource(heuristics.CompileResult), f"kernels.py uses its {name}"
    assert "launcher.config = " in inspect.getsource(heuristics), "the winner is launchers[0].config"
    compiled = inspect.getsource(importlib.import_module("triton.compiler").CompiledKernel)
    assert "self.src = src" in compiled
