"""Libraries that Triton builds, with a driver that builds as Triton's does but needs no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilefarm.builder.triton_builds import build_driver_module, built_libraries, keep_for_others
from compilefarm.loader import triton_builds
from compilefarm.loader.triton_builds import TritonLibrary, listen_to_builds, offer_libraries
from compilefarm.torch_internals import triton_driver

SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "cuda_utils", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_cuda_utils(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "answer", 42);
    return made;
}
"""


class Driver(types.ModuleType):
    """Stands for triton.backends.nvidia.driver of Triton 3.6."""

    def __init__(self, folder: Path) -> None:
        super().__init__("driver")
        self.folder = folder
        self.built_with: list[Any] = []
        self.library_dirs = lambda: ["where libcuda is"]

        def compile_module_from_src(src: str, name: str, library_dirs: Any = None) -> Any:
            self.built_with.append(library_dirs)
            path = folder / f"{name}.so"
            include = f"-I{sysconfig.get_paths()['include']}"
            command = ["g++", "-x", "c", "-", "-shared", "-fPIC", include, "-o", str(path)]
            subprocess.run(command, input=src, text=True, check=True)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        self.compile_module_from_src = compile_module_from_src

    def CudaUtils(self) -> Any:
        """What the driver does in every process that uses it."""
        return self.compile_module_from_src(src=SOURCE, name="cuda_utils", library_dirs=self.library_dirs())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    monkeypatch.setitem(sys.modules, triton_driver.DRIVER, driver)
    monkeypatch.setattr(triton_builds, "_offered", {})
    monkeypatch.setattr(triton_builds, "_built", {})
    return driver


def built_by(driver: Driver) -> TritonLibrary:
    listen_to_builds()
    assert driver.CudaUtils().answer == 42
    (library,) = built_libraries()
    return library


def test_what_is_built_is_noted_with_its_content(driver: Driver) -> None:
    library = built_by(driver)
    assert library.name == "cuda_utils"
    assert library.content == (driver.folder / "cuda_utils.so").read_bytes()
    assert driver.built_with == [["where libcuda is"]]


def test_a_driver_module_that_was_built_ahead_is_not_built_again_and_counts_as_built(driver: Driver) -> None:
    listen_to_builds()
    build_driver_module()
    assert driver.CudaUtils().answer == 42
    assert len(driver.built_with) == 1
    assert [library.name for library in built_libraries()] == ["cuda_utils"]


def test_what_was_built_ahead_lies_where_triton_looks_for_it_in_other_processes(driver: Driver, tmp_path: Path) -> None:
    listen_to_builds()
    build_driver_module()
    keep_for_others(tmp_path / "cache")
    # Triton has a folder for each key within its cache.
    kept = tmp_path / "cache" / driver.folder.name / "cuda_utils.so"
    assert kept.read_bytes() == (driver.folder / "cuda_utils.so").read_bytes()


def test_what_is_offered_is_not_built(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = built_by(driver)
    monkeypatch.setattr(triton_builds, "_built", {})
    pod = Driver(tmp_path / "nothing can be built here")
    pod.library_dirs = lambda: pytest.fail("looking for libcuda starts a program")
    monkeypatch.setitem(sys.modules, triton_driver.DRIVER, pod)
    offer_libraries({library.source_digest: library})
    assert pod.CudaUtils().answer == 42
    assert pod.built_with == []
    assert built_libraries() == []


def test_another_source_is_built_all_the_same(driver: Driver) -> None:
    other = TritonLibrary(source_digest="0" * 64, name="cuda_utils", content=b"not this one")
    offer_libraries({other.source_digest: other})
    assert driver.CudaUtils().answer == 42
    assert len(driver.built_with) == 1
