"""What torch's keys of compiled graphs leave out: a pod that differs in it gets none of another pod's results."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config

from compilefarm.client import compiler_state
from compilefarm.client.cache_keys import CacheKeys
from compilefarm.client.compiler_state import Unshared
from tests.client.test_torch_caches import environment, local, printed, serving
from tests.forked_pods import ForkedPods, forking
from tests.torch_states import setting

# Of the first operator traces run the kernel, of the second the gradient.
OPERATORS = """
import torch

library = torch.library.Library("of_a_pod", "DEF")
library.define("scaled(Tensor x) -> Tensor")
library.impl("scaled", lambda x: {kernel}, "CompositeImplicitAutograd")


@torch.library.custom_op("of_a_pod::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


kept.register_fake(lambda x: torch.empty_like(x))
kept.register_autograd(lambda context, x: {gradient})


def function(x):
    return torch.ops.of_a_pod.scaled(x.detach()), torch.ops.of_a_pod.kept(x)
"""


@pytest.fixture(scope="module")
def starting() -> Iterator[ForkedPods]:
    with forking(environment()) as forks:
        yield forks


WAYS = pytest.mark.parametrize("way", ["caches", "bundle"])


def told_by_pod(starting: ForkedPods, folder: Path, module: str, *, farm: str, way: str) -> dict[str, Any]:
    """What a pod tells that has a module of its own; if that leaves the compiler as it is, held against its own results
    without a compiler.
    """
    folder.mkdir(exist_ok=True)
    (folder / "registered_by_pod.py").write_text(module)
    variables = environment(**local(folder), COMPILEFARM_ADDRESS=farm)
    told = printed(starting.run("tests.client.registering_pod", str(folder), way, environment=variables))
    assert told["results"] == told["eager"] or "_inductor" in module
    return told


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "farm") as address:
        yield address


@WAYS
def test_pods_whose_own_operators_differ_get_their_own_results(
    starting: ForkedPods, farm: str, tmp_path: Path, way: str
) -> None:
    """A deployment changes the code of an operator, and graphs call it by the same name."""

    # No code is written for these.
    twice, thrice = "torch.mm(x, x)", "torch.mm(torch.mm(x, x), x)"

    def told(name: str, kernel: str, gradient: str) -> tuple[list[float], int]:
        module = OPERATORS.format(kernel=kernel, gradient=gradient)
        pod = told_by_pod(starting, tmp_path / name, module, farm=farm, way=way)
        return pod["results"], pod["hits"]

    assert told("first", twice, twice) == ([2.0, 2.0], 0)
    assert told("other-kernel", thrice, twice) == ([4.0, 2.0], 0)
    assert told("other-gradient", twice, thrice) == ([2.0, 4.0], 0)
    assert told("like-the-first", twice, twice) == ([2.0, 2.0], 1)


# As a pod builds it itself. Traces run the kernel, which the dispatcher calls composite.
EXTENSION = """
#include <torch/library.h>
char number[] = "products: 1";
at::Tensor scaled(const at::Tensor& x) { return number[10] == '1' ? x.mm(x) : x.mm(x).mm(x); }
TORCH_LIBRARY(of_a_pod, library) { library.def("scaled(Tensor x) -> Tensor", scaled); }
"""
LOADING = """
import torch

torch.ops.load_library("{library}")

def function(x):
    return torch.ops.of_a_pod.scaled(x.detach()), torch.mm(x, x)
"""


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of an operator; a compiler takes its time for one."""
    folder, files = tmp_path_factory.mktemp("extensions"), Path(torch.__file__).parent
    source, *libraries = (folder / name for name in ("extension.cpp", "first.so", "other.so"))
    source.write_text(EXTENSION)
    torchs = [f"-I{files}/include", f"-L{files}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run(["g++", "-std=c++20", "-O0", "-shared", "-fPIC", source, *torchs, "-o", libraries[0]], check=True)
    libraries[1].write_bytes(libraries[0].read_bytes().replace(b"products: 1", b"products: 2"))
    return libraries


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="builds extensions")
@WAYS
def test_pods_whose_own_operators_in_cpp_differ_get_their_own_results(
    starting: ForkedPods, farm: str, tmp_path: Path, way: str, extensions: list[Path]
) -> None:
    def told(name: str, library: Path) -> tuple[list[float], int]:
        module = LOADING.format(library=library)
        pod = told_by_pod(starting, tmp_path / name, module, farm=farm, way=way)
        return pod["results"], pod["hits"]

    assert told("first", extensions[0]) == ([2.0, 4.0], 0)
    assert told("other", extensions[1]) == ([4.0, 4.0], 0)
    assert told("like-the-first", extensions[0]) == ([2.0, 4.0], 1)


# What torch itself has, and what a deployment puts in its place.
PRODUCT = """
import torch
{changes}

def function(x):
    bias = torch.ones(2)
    return torch.addmm(bias, x, x), torch.mm(x, x)
"""
CHANGES = {
    "decomposition": """
from torch._inductor.decomposition import decompositions

decompositions[torch.ops.aten.addmm.default] = lambda bias, x, y, **_: torch.mm(x, y)
""",
    "pattern": """
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern


@register_graph_pattern(CallFunction(torch.ops.aten.mm.default, Arg(), Arg()), pass_dict=post_grad.pass_patterns[0])
def negate(match, x, y):
    match.replace_by_example(lambda x, y: -(x + y), [x, y])
""",
}


@WAYS
@pytest.mark.parametrize("change", CHANGES)
def test_a_pod_gets_nothing_of_one_that_has_replaced_a_part_of_inductor(
    starting: ForkedPods, farm: str, tmp_path: Path, way: str, change: str
) -> None:
    def told(name: str, changes: str = "") -> tuple[list[float], int]:
        pod = told_by_pod(starting, tmp_path / name, PRODUCT.format(changes=changes), farm=farm, way=way)
        return pod["results"], pod["hits"]

    other = told("other", CHANGES[change])
    own = told("own")
    assert other != own
    assert told("own-again") == (own[0], 1)


def key() -> str:
    return CacheKeys().asked("AOT_AUTOGRAD", "a graph")


@pytest.mark.parametrize(
    "switch", ["flash", "mem_efficient", "math"], ids=lambda switch: f"without attention's {switch}"
)
def test_switches_of_attention_are_told_apart(switch: str) -> None:
    """What attention becomes is decided when its gradients are traced."""
    usual, write = key(), getattr(torch.backends.cuda, f"enable_{switch}_sdp")
    write(False)
    try:
        assert key() != usual
    finally:
        write(True)
    assert key() == usual


def test_math_of_attention_in_a_narrow_precision_is_told_apart() -> None:
    usual, allow = key(), torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
    allow(True)
    try:
        assert key() != usual
    finally:
        allow(False)


def test_libraries_of_other_versions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = key()
    monkeypatch.setattr(compiler_state, "installed_libraries", lambda: (("library", "a-library 2.0"),))
    assert key() != usual


def test_what_triton_makes_of_kernels_is_told_apart_where_a_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached graphs have their kernels with them."""
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    usual = key()
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert key() != usual


def test_a_pass_of_the_users_own_is_not_shared() -> None:
    """torch leaves it out of its keys; with 2.15, too, a pod without it got what another made with it."""
    keys = CacheKeys()
    with setting(functorch_config, "joint_custom_pass", lambda graph, inputs: graph):
        with pytest.raises(Unshared, match="joint_custom_pass of functorch's configuration is a function"):
            keys.asked("AOT_AUTOGRAD", "a graph")
        # The graph that it leaves is what Inductor has its key of.
        keys.asked("FX_GRAPH", "a graph")
    # It was looked up with the pass, and what is written now may have been compiled with it.
    with pytest.raises(Unshared):
        keys.written("AOT_AUTOGRAD", "a graph")


@pytest.mark.parametrize(("module", "name"), [("decomposition", "decompositions"), ("lowering", "lowerings")])
def test_what_inductor_makes_of_operators_in_a_way_of_the_users_own_is_not_shared(module: str, name: str) -> None:
    table = getattr(importlib.import_module(f"torch._inductor.{module}"), name)
    own, target = key(), torch.ops.aten.addmm.default
    there = table.get(target)
    table[target] = lambda bias, x, y, **_: torch.mm(x, y)
    try:
        with pytest.raises(Unshared, match=r"aten\.addmm\.default"):
            key()
    finally:
        table.pop(target) if there is None else table.update({target: there})
    assert key() == own
