"""A pod that has put something of its own in the place of something of torch compiles by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.graph import targets
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.inner_calls import find_replaced_call
from compilefarm.graph.replacements import find_replacement, is_own_method, look_ahead
from compilefarm.graph.testing import CapturedGraph, capture

GELU: Any = torch.ops.aten.gelu.default


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x - 0.5).relu()


def tripled(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return x * 3


@functools.wraps(torch.nn.functional.gelu)
def disguised(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return x * 3


@pytest.fixture(scope="module")
def graph() -> CapturedGraph:
    return capture(program, torch.rand(4, 4))


@contextmanager
def kernel(key: str) -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", tripled, key)
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def later_kernel() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")
    torch.library.impl("aten::gelu", "AutogradCPU", tripled, lib=library)
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def entry(table: dict[Any, Any], function: object) -> Iterator[None]:
    before = table.get(GELU)
    table[GELU] = function
    try:
        yield
    finally:
        del table[GELU]
        if before is not None:
            table[GELU] = before


def inductors(module: str, table: str) -> dict[Any, Any]:
    loaded = __import__(f"torch._inductor.{module}", fromlist=[table])
    found: dict[Any, Any] = getattr(loaded, table)
    return found


@contextmanager
def pattern() -> Iterator[None]:
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern

    passes: Any = post_grad.pass_patterns[1]
    before = {key: list(entries) for key, entries in passes.patterns.items()}
    register_graph_pattern(CallFunction(GELU, Arg()), pass_dict=passes)(lambda match, x: None)
    try:
        yield
    finally:
        passes.patterns.clear()
        passes.patterns.update(before)


@contextmanager
def entry_of_py_kernels() -> Iterator[None]:
    key: Any = torch._C.DispatchKey.CompositeImplicitAutograd
    GELU.py_kernels[key] = tripled
    try:
        yield
    finally:
        del GELU.py_kernels[key]


KEYS = ("Autograd", "AutocastCPU", "Functionalize", "CPU")
REPLACEMENTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **{f"kernel for {key}": functools.partial(kernel, key) for key in KEYS},
    "kernel by torch.library.impl": later_kernel,
    "decomposition": lambda: entry(torch._decomp.decomposition_table, tripled),
    "decomposition in disguise": lambda: entry(torch._decomp.decomposition_table, disguised),
    "decomposition with arguments": lambda: entry(
        torch._decomp.decomposition_table, functools.partial(tripled, approximate="none")
    ),
    "meta function": lambda: entry(torch._decomp.meta_table, tripled),
    "Inductor's decomposition": lambda: entry(inductors("decomposition", "decompositions"), tripled),
    "Inductor's lowering": lambda: entry(inductors("lowering", "lowerings"), tripled),
    "Inductor's pattern": pattern,
    "Python's kernel": entry_of_py_kernels,
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_what_torch_makes_of_an_operator(
    graph: CapturedGraph, replace: Callable[[], AbstractContextManager[None]]
) -> None:
    assert find_replacement() is None
    with replace():
        # A thread may do so, beside what registers.
        look_ahead()
        with pytest.raises(Bypass, match="something of its own in the place of") as caught:
            graph.encode()
    assert caught.value.reason == "replaced_operator"
    graph.encode()


@pytest.mark.parametrize("method", [torch.Tensor.sigmoid, tripled], ids=["torch's", "own"])
def test_a_method_of_tensors(graph: CapturedGraph, method: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "relu", method)
        # Dynamo writes the method's name, and whoever runs the graph calls what has it.
        with pytest.raises(Bypass, match=r"torch\.Tensor\.relu"):
            capture(program, torch.rand(4, 4)).encode()
    graph.encode()


@pytest.fixture
def names_anew() -> Iterator[None]:
    """Names of functions are found anew; Dynamo finds them once, at the first compile of a process."""
    tables: Any = (targets._torch_functions, targets._torch_names, targets._entering, targets._leaving)
    for table in tables:
        table.cache_clear()
    yield
    for table in tables:
        table.cache_clear()


class Tripling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch says nothing of it
        return x * 3


@pytest.mark.usefixtures("names_anew")
@pytest.mark.parametrize("own", [tripled, Tripling.apply, torch.sigmoid], ids=["function", "autograd", "torch's"])
def test_a_function_of_torch_that_is_another_one_by_now(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dynamo takes what is there for a function of torch, and leaves it in graphs as it is.
    monkeypatch.setattr(torch.nn.functional, "silu", own)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(own, (x,))
    if own is torch.sigmoid:
        assert targets.name_call(node)[1] == "torch.sigmoid"
        return
    with pytest.raises(Bypass, match="which the farm does not take"):
        targets.name_call(node)


def attention(x: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(12, 4)
    found = torch.nn.functional.multi_head_attention_forward(
        x, x, x, 4, 2, weight, None, None, None, False, 0.0, weight[:4], None, training=False, need_weights=False
    )
    return found[0]


def norms(x: torch.Tensor) -> torch.Tensor:
    return x.norm(p=2, dim=0)


@pytest.mark.parametrize(
    ("module", "name", "calling"),
    [
        (torch.nn.functional, "scaled_dot_product_attention", attention),
        (torch.nn.functional, "_in_projection_packed", attention),
        (torch, "norm", norms),
        (torch.functional, "norm", norms),
    ],
)
def test_what_functions_of_torch_call(
    module: Any, name: str, calling: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = capture(calling, torch.rand(3, 4))
    captured.encode()
    with monkeypatch.context() as patched:
        patched.setattr(module, name, tripled)
        with pytest.raises(Bypass, match=name) as caught:
            captured.encode()
        assert caught.value.reason == "replaced_operator"
    captured.encode()


@pytest.mark.parametrize("name", ["__mul__", "__radd__", "__itruediv__", "__getitem__"])
def test_an_operator_of_python(graph: CapturedGraph, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, name, tripled)
        with pytest.raises(Bypass, match=f"torch.Tensor.{name}"):
            graph.encode()
    graph.encode()


def test_an_attribute(graph: CapturedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "T", property(tripled), raising=False)
    with pytest.raises(Bypass, match=r"torch\.Tensor\.T$"):
        graph.encode()


def test_functions_of_torch_call_nothing_but_torchs() -> None:
    functions = {**targets._torch_functions(), **vars(torch.Tensor)}
    assert {name: found for name, each in functions.items() if (found := find_replaced_call([each]))} == {}


def test_methods_that_torch_gives_tensors() -> None:
    assert [name for name in targets._tensor_methods() if not is_own_method(name)] == []


def test_after_a_compile_by_inductor_everything_is_still_torchs() -> None:
    with torch.no_grad():
        torch.compile(program, backend="aot_eager_decomp_partition")(torch.rand(4, 4))
    for module in ("compile_fx", "fx_passes.joint_graph", "fx_passes.post_grad", "fx_passes.pre_grad"):
        __import__(f"torch._inductor.{module}")
    from torch._inductor.fx_passes import joint_graph, post_grad

    joint_graph.lazy_init()
    post_grad.lazy_init()
    assert find_replacement() is None


def test_an_operator_of_a_library_may_have_what_it_likes(graph: CapturedGraph) -> None:
    from torch._inductor.decomposition import decompositions

    with torch.library._scoped_library("replacing", "FRAGMENT") as library:
        library.define("gelu(Tensor x) -> Tensor")
        library.impl("gelu", tripled, "CompositeExplicitAutograd")
        operator: Any = torch.ops.replacing.gelu.default
        decompositions[operator] = tripled
        try:
            graph.encode()
        finally:
            del decompositions[operator]


@pytest.mark.parametrize("table", ["decomposition.decompositions", "lowering.lowerings"])
def test_a_library_that_lies_beside_torch(graph: CapturedGraph, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the folders of torchvision and torchao begin with that of torch's."""
    code = tripled.__code__.replace(co_filename=f"{Path(torch.__file__).parent}like/kernels.py")
    monkeypatch.setattr(tripled, "__code__", code)
    module, _, name = table.partition(".")
    with (
        entry(inductors(module, name), tripled),
        pytest.raises(Bypass, match=rf"gelu.default in torch._inductor.{module}"),
    ):
        graph.encode()
