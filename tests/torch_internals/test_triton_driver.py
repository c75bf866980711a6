"""Canaries of torch_internals/triton_driver.py."""

from __future__ import annotations

import importlib
import inspect

import pytest

from compilefarm.torch_internals import triton_driver
from compilefarm.torch_internals.triton_driver import DRIVER, driver_module, look_at_gpu, read_sources

pytest.importorskip("triton")


def test_triton_builds_through_functions_of_its_driver() -> None:
    driver = driver_module()
    assert hasattr(driver, "library_dirs"), "triton_builds keeps library_dirs from starting ldconfig"
    builders = [name for name in ("compile_module_from_src", "compile_module_from_file") if hasattr(driver, name)]
    assert builders, "Triton builds cuda_utils in another way: artifacts for CUDA would need a C compiler"
    starting = inspect.getsource(driver.CudaUtils.__init__)
    assert any(f"{name}(" in starting for name in builders), "triton_builds has CudaUtils build cuda_utils"


def test_triton_calls_its_builders_with_names_that_are_listened_to() -> None:
    driver = driver_module()
    for name in ("compile_module_from_src", "compile_module_from_file"):
        builder = getattr(driver, name, None)
        if builder is not None:
            given = inspect.signature(inspect.unwrap(builder)).parameters
            assert next(iter(given)) in ("src", "src_path"), f"triton_builds reads the source of {name}"
            assert {"name", "library_dirs"} <= set(given), f"triton_builds passes these on to {name}"


def test_what_reads_kernels_can_be_made_ready_before() -> None:
    read_sources()


def test_the_driver_looks_at_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a GPU there is no active driver to look at.
    runtime = importlib.import_module("triton.runtime")
    assert hasattr(type(runtime.driver), "active")
    assert "get_current_device" in inspect.getsource(inspect.getmro(driver_module().CudaDriver)[1])
    looked: list[str] = []

    class Active:
        def get_current_device(self) -> None:
            looked.append(DRIVER)

    monkeypatch.setattr(type(runtime.driver), "active", Active())
    look_at_gpu()
    assert looked == [triton_driver.DRIVER]
