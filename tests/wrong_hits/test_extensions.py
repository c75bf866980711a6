"""A pod that has loaded an extension with kernels of its own for torch's operators compiles by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compilefarm.graph.extensions import _HARMLESS, EVERYTHING, find_foreign_kernel, foreign_kernels, registrable
from compilefarm.graph.operators import NAMESPACES_OF_TORCH
from compilefarm.graph.registrations import file_of_schema, native_kernels_from_elsewhere
from compilefarm.graph.replacements import find_replacement
from compilefarm.graph.shared_objects import operators_named
from compilefarm.torch_internals.operators import registered_names
from tests.forked_pods import ForkedPods

_IS_NEWEST = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
_TORCH = Path(torch.__file__).parent
_EXTENSION = """
#include <torch/library.h>
at::Tensor same(const at::Tensor& self) { return self; }
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { library.impl("relu", same); }
"""
_POD = """
import os
import sys
import torch
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.testing import capture
graph = capture(torch.relu, torch.ones(2))
graph.encode()
torch.ops.load_library(sys.argv[1])
if sys.argv[2:] == ["removed"]:
    os.unlink(sys.argv[1])
for _ in range(2):
    try:
        graph.encode()
    except Bypass as why:
        print(why.reason, why)
"""


def test_kernels_of_torch_are_its_own() -> None:
    # What torch._C._dispatch_dump says is understood.
    kernels = {
        (name, kernel.key) for name, kernel in native_kernels_from_elsewhere("of no kernel", among=registered_names())
    }
    assert {("aten::relu", "CPU"), ("aten::relu", "Autograd")} <= kernels
    assert len(kernels) > 10_000
    assert file_of_schema("aten::relu").endswith("aten/src/ATen/RegisterSchema.cpp")
    assert list(foreign_kernels()) == []
    assert find_foreign_kernel() is None


@pytest.mark.parametrize("name", ["compilefarm-0a/cabc.so (deleted)", "lib/libtorch_cpu.so"])
def test_libraries_that_are_not_looked_at(name: str) -> None:
    assert _HARMLESS.match(f"{_TORCH}/{name}" if name.startswith("lib/") else f"/tmp/{name}")
    assert not _HARMLESS.match(f"/tmp/other/{name}".replace("compilefarm-", ""))


def test_which_libraries_can_register_kernels(tmp_path: Path) -> None:
    libraries = _TORCH / "lib"
    # It is too large to be looked through.
    assert {"aten::", "quantized::"} <= set(registrable(libraries / "libtorch_cpu.so"))
    assert not registrable(libraries / "libc10.so")
    assert not registrable(Path(sys.modules["_ctypes"].__file__ or ""))
    (tmp_path / "torn.so").write_bytes(b"\x7fELF")
    assert registrable(tmp_path / "torn.so") == EVERYTHING
    assert registrable(tmp_path / "removed.so") == EVERYTHING
    # Such a library is loaded as any other: e_shoff and e_shnum of elf.h say that it has no sections.
    stripped = bytearray((libraries / "libc10.so").read_bytes())
    stripped[40:48], stripped[60:62] = bytes(8), bytes(2)
    (tmp_path / "stripped.so").write_bytes(stripped)
    assert registrable(tmp_path / "stripped.so") == EVERYTHING


_NAMING = """
#include <string>
void keep(const std::string&);
void take(const char*);
void whole() { take("quantized"); }
// Linkers have one text at the end of the other.
void ending() { take("fake_quantized"); }
void made(const char* name) { keep(std::string("prims::") + name); }
void one() { keep("aten::relu_"); }
void longer() { keep("mkldnn::_linear_pointwise"); }
const char* written() { return "torch_onednn_kernel"; }
"""


@pytest.mark.slow
@pytest.mark.skipif(not _IS_NEWEST or shutil.which("g++") is None, reason="one end is enough, with a compiler")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_which_operators_stand_in_a_library(level: str, tmp_path: Path) -> None:
    (tmp_path / "naming.cpp").write_text(_NAMING)
    library = tmp_path / "naming.so"
    subprocess.run(["g++", level, "-shared", "-fPIC", tmp_path / "naming.cpp", "-o", library], check=True)
    # What only looks like a name, or is the beginning of one, stands for all that begin so.
    found = operators_named(library, namespaces=NAMESPACES_OF_TORCH, operators={"aten::relu_"})
    may_register = ("quantized::add", "prims::mul", "aten::relu_", "mkldnn::_linear_pointwise")
    assert all(name.startswith(tuple(found)) for name in may_register), found
    # A text within a longer word names nothing.
    assert not "onednn::qlinear_pointwise".startswith(tuple(found))


@pytest.mark.slow
@pytest.mark.skipif(not _IS_NEWEST or shutil.which("g++") is None, reason="one end is enough, with a compiler")
def test_an_extension_with_a_kernel_for_an_operator_of_torch(tmp_path: Path, forks: ForkedPods) -> None:
    assert find_replacement() is None
    source, library = tmp_path / "extension.cpp", tmp_path / "extension.so"
    source.write_text(_EXTENSION)
    torchs = [f"-I{_TORCH}/include", f"-L{_TORCH}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run(["g++", "-std=c++20", "-O0", "-shared", "-fPIC", source, *torchs, "-o", library], check=True)
    for further in ([], ["removed"]):
        done = forks.execute(_POD, str(library), *further)
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == second
        assert first.startswith("replaced_operator this process has something of its own in the place of")
        assert f"the kernel of aten::relu for AutogradCPU (registered in {source})" in first
