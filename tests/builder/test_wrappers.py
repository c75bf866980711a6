"""Finishing Inductor's wrapper: what a pod need not import is gone, and everything else is as it was."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from compilefarm.builder import kernels, programs
from compilefarm.builder.kernels import FinishedKernel
from compilefarm.builder.wrappers import WrapperNotKnown, finished_wrapper, taking_constants
from compilefarm.loader import kernels as loaded_kernels
from compilefarm.loader.wrappers import WrapperNotMoved, joined_wrapper, moved_wrapper

importlib.import_module("torch._inductor.kernel.mm")  # registers extern kernels


def test_an_import_that_nothing_uses_goes_and_lines_keep_their_numbers() -> None:
    source = "import math\nimport os, sys\nfrom a.b import _align as align\nx = sys.path\nline = 5\n"
    finished = finished_wrapper(source)
    assert finished == "\nimport os, sys\n\nx = sys.path\nline = 5\n"
    assert len(finished.split("\n")) == len(source.split("\n"))


def test_a_name_used_within_a_function_counts() -> None:
    source = "import math\ndef call(args):\n    return math.inf\n"
    assert finished_wrapper(source) == source


def _called(source: str, args: list[object]) -> object:
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope["call"](args)


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("p = None\ndef call(args):\n    x, = args\n    args.clear()\n    return x, p\n", ["x", "p"]),
        ("p = None\ndef call(args):\n    return None, p\n", ["p"]),
    ],
    ids=["behind an input", "alone"],
)
def test_constants_are_taken_behind_the_inputs(source: str, args: list[object]) -> None:
    given = taking_constants(source, ["p"])
    assert len(given.split("\n")) == len(source.split("\n"))
    expected = args[-1]
    assert _called(given, args)[1] == expected  # type: ignore[index]
    assert args == []


def test_a_wrapper_that_nobody_knows_takes_no_constants() -> None:
    with pytest.raises(WrapperNotKnown):
        taking_constants("def run(args):\n    return args\n", ["p"])


def test_an_import_within_a_function_stays() -> None:
    source = "def call(args):\n    from torch._dynamo.testing import rand_strided\n    return 1\n"
    assert finished_wrapper(source) == source


def test_kernels_that_are_functions_of_torch_come_from_torch() -> None:
    source = "from torch._inductor.select_algorithm import extern_kernels\nf = extern_kernels.mm\n"
    scope: dict[str, object] = {}
    finished = finished_wrapper(source)
    assert "select_algorithm" not in finished
    exec(finished, scope)
    assert scope["f"] is torch.mm


def test_kernels_of_inductor_stay_where_they_are() -> None:
    kernels = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    own = next(name for name, kernel in vars(kernels).items() if getattr(torch, name, None) is not kernel)
    source = f"from torch._inductor.select_algorithm import extern_kernels\nf = extern_kernels.{own}\n"
    assert finished_wrapper(source) == source


def test_what_is_for_people_goes() -> None:
    source = '''r"""
Compile-time auto-tuning block:
async_compile = AsyncCompile()
"""
import math
# Topologically Sorted Source Nodes: [x]
text = """
# no comment
"""
def call(args):
    # in a function
    return math.inf, text  # at the end
def benchmark_compiled_module(args, times=10):
    from torch._inductor.utils import print_performance
    return print_performance(times)
if __name__ == "__main__":
    benchmark_compiled_module(None)
'''
    finished = finished_wrapper(source)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(finished, scope)
    assert scope["call"](()) == (math.inf, "\n# no comment\n")
    assert len(finished.split("\n")) == len(source.split("\n"))
    for word in ("auto-tuning", "Topologically", "in a function", "benchmark", "__main__"):
        assert word not in finished
    assert (
        "return math.inf" in finished.split("\n")[source.split("\n").index("    return math.inf, text  # at the end")]
    )


WRAPPER = """
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
first = async_compile.triton('first', '''
@triton.jit
def first(): pass
''', device_str='cuda')
second = async_compile.triton('second', 'source', device_str='cuda')
async_compile.wait(globals())
del async_compile
def call(args):
    return first, second
"""


@pytest.fixture
def finishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are the numbers that modules hold under their names."""

    def find(name: str, modules: Sequence[ModuleType]) -> Any:
        return next((vars(module)[name] for module in modules if name in vars(module)), None)

    def finish(name: str, autotuner: Any) -> FinishedKernel:
        return FinishedKernel(digest=f"digest of {autotuner}", name=name, content=str(autotuner).encode())

    monkeypatch.setattr(kernels, "_find_autotuner", find)
    monkeypatch.setattr(kernels, "_finish", finish)
    monkeypatch.setattr(loaded_kernels, "_load", lambda content, *, device: module_with(content=content.decode()))


def module_with(**attributes: Any) -> ModuleType:
    module = ModuleType("wrapper")
    vars(module).update(attributes)
    return module


@pytest.mark.usefixtures("finishing")
def test_a_wrapper_asks_for_its_kernels_and_compiles_nothing() -> None:
    source, taken = kernels.take_kernels(WRAPPER, [module_with(first=1), module_with(second=2)])
    assert [(kernel.name, kernel.content) for kernel in taken] == [("first", b"1"), ("second", b"2")]
    assert kernels.names_of_kernels(source) == []
    finished = finished_wrapper(source)
    assert "AsyncCompile" not in finished
    assert "jit" not in finished
    assert len(finished.split("\n")) == len(WRAPPER.split("\n"))
    scope: dict[str, Any] = {}
    with loaded_kernels.offering_kernels({kernel.digest: kernel.content for kernel in taken}):
        exec(finished, scope)
    assert [kernel.content for kernel in scope["call"](())] == ["1", "2"]


@pytest.mark.usefixtures("finishing")
def test_a_kernel_of_another_kind_is_left_to_inductor() -> None:
    source, taken = kernels.take_kernels(WRAPPER, [module_with(second=2)])
    assert [kernel.name for kernel in taken] == ["second"]
    assert kernels.names_of_kernels(source) == ["first"]
    assert "first = async_compile.triton('first'" in source
    assert "async_compile.wait(globals())" in source


def graph_of(source: str, *, bundle: object) -> Any:
    """As much of a CompiledFxGraph as finishing it takes."""
    return SimpleNamespace(
        source_code=source,
        cache_key="compilefarm_no_such_wrapper",
        _triton_bundle=bundle,
        fx_kwargs={},
        runnable_graph_str="",
        inductor_post_grad_graph_str="",
    )


@pytest.mark.usefixtures("finishing")
def test_a_program_is_packed_with_its_winners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(WRAPPER, bundle="all variants of all kernels, with every step to machine code")
    cache = importlib.import_module("torch._inductor.codecache")
    wrapper = module_with(__file__=cache.get_path(graph.cache_key, "py")[2], first=1, second=2)
    monkeypatch.setattr(cache.PyCodeCache, "modules", [wrapper])
    assert [kernel.content for kernel in programs._finish(graph)] == [b"1", b"2"]
    assert graph._triton_bundle is None
    assert "async_compile" not in graph.source_code


@pytest.mark.usefixtures("finishing")
def test_a_program_with_a_kernel_that_is_not_found_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(WRAPPER, bundle="all variants")
    cache = importlib.import_module("torch._inductor.codecache")
    wrapper = module_with(__file__=cache.get_path(graph.cache_key, "py")[2], second=2)
    monkeypatch.setattr(cache.PyCodeCache, "modules", [wrapper])
    with pytest.raises(programs.KernelsLeft, match=r"would be compiled by pods: first$"):
        programs._finish(graph)


def test_a_wrapper_without_kernels_stays_as_it_is() -> None:
    source = "def call(args):\n    return args\n"
    assert kernels.take_kernels(source, []) == (source, [])


def test_a_wrapper_for_groups_of_this_process() -> None:
    source = """
torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', 'compilefarm_group_1_of_2')
buf1 = f(buf0, 8, "compilefarm_group_0_of_16", 'compilefarm_group_1_of_2')
"""
    # Text of this process, whatever is in it.
    joined = joined_wrapper(source, process_groups=["mesh_tp", "'); quit('\\1"])
    texts = [node.value for node in ast.walk(ast.parse(joined)) if isinstance(node, ast.Constant)]
    assert texts == ["sum", "'); quit('\\1", 8, "mesh_tp", "'); quit('\\1"]
    with pytest.raises(IndexError):
        joined_wrapper(source, process_groups=["mesh_tp"])


def test_a_wrapper_for_another_gpu() -> None:
    source = """
triton_0 = finished_kernel("00ff")
with torch.cuda._DeviceGuard(0):
    torch.cuda.set_device(0)
    stream0 = get_raw_stream(0)
    a = f(0, device(type='cuda', index=0), 'cuda:0', "cuda:0", x[0])
"""
    assert (
        moved_wrapper(source, device=3)
        == """
triton_0 = finished_kernel("00ff", device=3)
with torch.cuda._DeviceGuard(3):
    torch.cuda.set_device(3)
    stream0 = get_raw_stream(3)
    a = f(0, device(type='cuda', index=3), 'cuda:3', "cuda:3", x[0])
"""
    )


@pytest.mark.parametrize(
    "line",
    [
        "x = f(device=0)",
        "x = torch.empty(3, device='cuda:0 ')",
        "x = torch.device('cuda', 0)",
        'x = torch.device(type="cuda",  index=0)',
        "with torch.cuda.device(0):",
        "stream = torch._C._cuda_getCurrentRawStream(device_index=0)",
        "get_raw_stream( 0 )",
        "k = finished_kernel(digest)",
    ],
)
def test_a_wrapper_that_would_stay_on_the_first_gpu_is_refused(line: str) -> None:
    with pytest.raises(WrapperNotMoved, match=r"line 2 of the wrapper stays on GPU 0"):
        moved_wrapper(f"import torch\n    {line}\n", device=1)


@pytest.mark.parametrize(
    "line",
    [
        "x[0] = f(0, dim=0, index=0)",
        "buf0 = empty_strided_cuda((0, 1), (1, 0), torch.float32)",
        "device(type='cpu', index=0)",
        "stream0 = get_raw_stream(0)",
        "torch.cuda.set_device(0)",
        "x = 'cuda:0'",
        "x = 'cuda:01'",
    ],
)
def test_what_is_no_gpu_keeps_no_wrapper_from_moving(line: str) -> None:
    assert moved_wrapper(line, device=1).partition("=")[0] == line.partition("=")[0].replace("(0)", "(1)")
