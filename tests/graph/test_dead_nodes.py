"""Nodes that do nothing are not sent; whatever does something is, even where nobody uses what it gives."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.dead_nodes import OPERATORS, find_dead_nodes
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Graph as SentGraph

LIBRARY = frozenset({"dead_nodes::bump", "dead_nodes::copied"})


@torch.library.custom_op("dead_nodes::bump", mutates_args=["x"])
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("dead_nodes::copied", mutates_args=[])
def copied(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@copied.register_fake
def _fake_copied(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _calls(graph: SentGraph) -> Iterator[str]:
    """Everything that a graph and its subgraphs call."""
    yield from (node.call.target for node in graph.nodes if node.HasField("call"))
    for subgraph in graph.subgraphs:
        yield from _calls(subgraph)


def _masked(x: torch.Tensor) -> torch.Tensor:
    """What transformers do around a mask."""
    queries = torch.arange(x.shape[0])
    return x.sin() + queries[:, None]


def _masked_with_dead_nodes(x: torch.Tensor) -> torch.Tensor:
    """The same, with parts of the mask that this attention does not need."""
    queries = torch.arange(x.shape[0])
    batch, heads = torch.arange(1), torch.ones(2, dtype=torch.int64) + 1
    positions = (queries + 0)[None, :, None].expand(2, -1, 1)
    allowed = torch.where(positions >= batch, torch.tensor(0.0), float("-inf"))
    allowed.to(torch.float64).masked_fill(x.detach()[:, :1].T.unsqueeze(-1) > 0, 1.0).cumsum(-1)
    x.view(-1).split(2)[0].contiguous()
    torch.ops.aten.mul.Tensor(heads, 2)
    return x.sin() + queries[:, None]


def _in_a_branch(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: torch.cond(x.sum() > 0, function, lambda y: y + 1, (x,))


@pytest.mark.parametrize(
    ("wrap", "dynamic"),
    [(lambda f: f, False), (lambda f: f, True), (_in_a_branch, False)],
    ids=["plain", "dynamic", "cond"],
)
def test_what_nobody_uses_is_not_in_the_key(wrap: Callable[..., Any], dynamic: bool) -> None:
    without, with_dead_nodes = (
        capture(wrap(function), torch.ones(4, 3), dynamic=dynamic) for function in (_masked, _masked_with_dead_nodes)
    )
    # Dynamo leaves them in.
    assert _nodes(with_dead_nodes) > _nodes(without) + 10
    assert with_dead_nodes.encode().job == without.encode().job


def _nodes(captured: CapturedGraph) -> int:
    modules = captured.graph_module.modules()
    return sum(len(module.graph.nodes) for module in modules if isinstance(module, GraphModule))


def _padded_to_multiples(x: torch.Tensor, *, asks: bool) -> torch.Tensor:
    """What libraries ask before they choose a way: whether torch.func is at work, whether a length is a multiple."""
    if asks and (torch._C._are_functorch_transforms_active() or (x.shape[0] / 4).is_integer()):
        return x
    if not asks and x.shape[0] % 4 == 0:
        return x
    return torch.nn.functional.pad(x, (0, 0, 0, 1)).sin()


def test_questions_that_have_been_answered_are_not_sent() -> None:
    made = []
    for asks in (False, True):
        captured = capture(functools.partial(_padded_to_multiples, asks=asks), torch.ones(7, 3), dynamic=True)
        made.append([*_calls(captured.encode().job.graph)])
    assert made[0] == made[1]
    assert "sin" in made[1][-1]


def test_what_a_gpu_can_do_is_not_asked_again() -> None:
    # As transformers asks before it computes experts as products of groups.
    graph = Graph()
    x = graph.placeholder("x")
    capability = graph.call_function(torch.cuda.get_device_capability, (torch.device("cuda", 0),))
    major, result = graph.call_function(operator.getitem, (capability, 0)), graph.call_method("sin", (x,))
    graph.output((result,))
    capability.meta["example_value"], major.meta["example_value"] = (9, 0), 9
    assert find_dead_nodes(graph) == {capability, major}


def test_an_unused_input_stays() -> None:
    graph = Graph()
    x, _ = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_method("sin", (x,)),))
    captured = CapturedGraph(
        graph_module=GraphModule(torch.nn.Module(), graph), example_inputs=[torch.ones(3), torch.ones(3)]
    )
    assert len(captured.encode().job.inputs) == 2


def test_a_tensor_that_only_dead_nodes_read_is_not_sent() -> None:
    root = torch.nn.Module()
    root.register_parameter("weight", torch.nn.Parameter(torch.ones(3)))
    root.register_buffer("small", torch.ones(3))
    graph = Graph()
    x = graph.placeholder("x")
    for name in ("weight", "small"):
        graph.call_function(torch.add, (graph.get_attr(name), x)).meta["example_value"] = torch.ones(3)
    graph.output((graph.call_method("sin", (x,)),))
    encoded = CapturedGraph(graph_module=GraphModule(root, graph), example_inputs=[torch.ones(3)]).encode()
    assert (encoded.held, encoded.blobs) == ((), {})
    assert (len(encoded.job.inputs), len(encoded.job.graph.nodes)) == (1, 3)


def test_a_processor_that_only_dead_nodes_need_is_not_asked_for() -> None:
    needs: list[EnvironmentNeeds] = []

    def environment(given: EnvironmentNeeds) -> Environment:
        needs.append(given)
        return Environment()

    with FakeTensorMode():
        on_gpu, on_cpu = torch.empty(3, device="cuda:0"), torch.empty(3)
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = on_gpu
    graph.call_function(torch.arange, (3,)).meta["example_value"] = on_cpu
    graph.output((graph.call_method("sin", (x,)),))
    encode_job(GraphModule(torch.nn.Module(), graph), [on_gpu], options={}, environment=environment)
    assert needs == [EnvironmentNeeds(cpu=False, cuda_device=0)]


class _Converted(torch.nn.Module):
    """A layer that is brought to the dtype of its input at each call, as routers of transformers are."""

    def __init__(self, *, converts: bool) -> None:
        super().__init__()
        self.layer, self.converts = torch.nn.Linear(3, 3), converts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.converts:
            self.layer.to(x.dtype)
        return self.layer(x)


def test_a_layer_that_is_of_the_dtype_already_is_not_converted() -> None:
    with torch.no_grad():
        made = [capture(_Converted(converts=each), torch.ones(2, 3)).encode().job.graph for each in (False, True)]
    assert [*_calls(made[0])] == [*_calls(made[1])] == ["torch._C._nn.linear"]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "shallow_copy_data_"), reason="torch writes it otherwise")
@pytest.mark.parametrize("of", [lambda x: x.conj(), lambda x: x.t(), lambda x: x.clone()])
def test_a_tensor_that_takes_other_data_is_written_to(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.data = of(x)
        return x + 1

    with pytest.raises(Bypass):
        capture(model, torch.ones(2, 2, dtype=torch.complex64)).encode()


def test_what_is_not_known_of_stays() -> None:
    """Graphs that Dynamo did not make need not say what their nodes give."""
    graph = Graph()
    x = graph.placeholder("x")
    unknown = graph.call_method("cos", (x,))
    graph.output((graph.call_method("sin", (x,)),))
    assert not find_dead_nodes(graph)
    unknown.meta["example_value"] = torch.ones(3)
    assert find_dead_nodes(graph) == {unknown}


def _then(effect: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        effect(x)
        return x + 1

    return program


def _add_up(x: torch.Tensor) -> None:
    y = x.view(-1)
    y += 1


def _set_item(x: torch.Tensor) -> None:
    x[0, 0] = 7


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def _grad_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return x @ x


_ATTENTION = functional.scaled_dot_product_attention
# Programs, and what of their graphs has an effect, or is not known to have none.
EFFECTS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "method that writes": (lambda x: x.add_(1), "add_"),
    "method that writes through a view": (lambda x: x.transpose(0, 1)[1].mul_(2), "mul_"),
    # As Dynamo writes it for the bytecode of this interpreter.
    "in-place operator": (_add_up, "operator.iadd" if sys.version_info < (3, 13) else "add_"),
    "item that is set": (_set_item, "operator.setitem"),
    "function that writes": (torch.relu_, "torch.relu_"),
    "out=": (lambda x: torch.add(x, 1, out=x), "torch.add"),
    "inplace=": (lambda x: functional.hardtanh(x, inplace=True), "torch.nn.functional.hardtanh"),
    "overload that writes": (lambda x: torch.ops.aten.add_.Tensor(x, 1), "aten::add_.Tensor"),
    "overload with out=": (lambda x: torch.ops.aten.add.out(x, x, out=x), "aten::add.out"),
    "overload with other results to write to": (
        lambda x: torch.ops.aten.max.dim_max(x.sin(), 0, max=x[0], max_values=torch.ones(3, dtype=torch.int64)),
        "aten::max.dim_max",
    ),
    "several tensors that are written to": (lambda x: torch._foreach_add_([x], 1), "torch._foreach_add_"),
    "running statistics": (
        lambda x: functional.batch_norm(x, x[0], x[1], training=True),
        "torch.nn.functional.batch_norm",
    ),
    "embedding that is renormed": (
        lambda x: functional.embedding(torch.tensor([1]), x, max_norm=0.1),
        "torch.nn.functional.embedding",
    ),
    "random function": (lambda x: torch.rand(3), "torch.rand"),
    "random method": (lambda x: x.bernoulli(), "bernoulli"),
    "random overload": (lambda x: torch.ops.aten.rand_like(x), "aten::rand_like"),
    "dropout": (lambda x: functional.dropout(x, 0.5, training=True), "torch.nn.functional.dropout"),
    "dropout of attention": (
        lambda x: _ATTENTION(x, x, x, dropout_p=0.5),
        "torch._C._nn.scaled_dot_product_attention",
    ),
    "assertion": (lambda x: torch._assert_async((x >= 0).all()), "torch._assert_async"),
    "higher-order operator": (_in_a_branch(torch.sin), "cond"),
    "operator of a library that writes": (bump, "dead_nodes::bump"),
    "operator of a library": (copied, "dead_nodes::copied"),
    "grad mode": (_grad_mode, "torch._C._set_grad_enabled"),
    "autocast": (_autocast, "torch.amp.autocast_mode._exit_autocast"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_what_has_an_effect_stays(name: str) -> None:
    effect, target = EFFECTS[name]
    x = torch.rand(3, 3)
    with torch.no_grad():
        captured = capture(_then(effect), x.clone())
    assert target in list(_calls(captured.encode().job.graph))
    _assert_faithful(captured, [x])


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (lambda x: torch.zeros(x.sum().to(torch.int64).item()), "torch.zeros"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "operator.getitem"),
        (lambda x: torch.where(x > 0), "torch.where"),
    ],
    ids=["item as size", "nonzero", "mask", "where"],
)
def test_what_makes_a_size_that_depends_on_elements_stays(program: Callable[..., Any], target: str) -> None:
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        captured = capture(_then(program), torch.ones(3))
    assert target in list(_calls(captured.encode().job.graph))
    _assert_faithful(captured, [torch.ones(3)])


def _seen(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Everything that a call leaves behind: results, inputs, and the state of the generator of random numbers."""
    twins = [tensor.clone() for tensor in inputs]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        results = function(*twins)
        return [*results, *twins, torch.random.get_rng_state()]


def _assert_faithful(captured: CapturedGraph, inputs: Sequence[torch.Tensor]) -> None:
    """Decoding what is sent gives a graph that does the same."""
    with torch.no_grad():
        encoded = captured.encode()
        decoded = decode_job(encoded.job, blobs=encoded.blobs, operators=LIBRARY)
    ours, expected = _seen(decoded.graph_module, inputs), _seen(captured.graph_module, inputs)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call of a random graph.

    Attributes:
        operation: in a table.
        first, second: which of the tensors so far it is called with, counted from the last.
    """

    operation: int
    first: int
    second: int


# Each on two tensors of four elements; most give another.
PURE: tuple[Callable[[Graph, Node, Node], Node], ...] = (
    lambda graph, a, b: graph.call_function(torch.add, (a, b)),
    lambda graph, a, b: graph.call_function(operator.mul, (a, b), {}),
    lambda graph, a, _: graph.call_method("view", (a, 4)),
    lambda graph, a, _: graph.call_function(operator.getitem, (a, slice(None))),
    lambda graph, a, b: graph.call_function(torch.where, (graph_condition(graph, b), a, b)),
    lambda graph, a, _: graph.call_function(torch.ops.aten.flip.default, (a, [0])),
    lambda graph, *_: graph.call_function(torch.ones, (4,)),
)
EFFECTIVE: tuple[Callable[[Graph, Node, Node], Node], ...] = (
    lambda graph, a, b: graph.call_method("add_", (a, b)),
    lambda graph, a, b: graph.call_function(operator.iadd, (a, b)),
    lambda graph, a, _: graph.call_function(operator.setitem, (a, 0, 0.5)),
    lambda graph, a, b: graph.call_function(torch.mul, (a, b), {"out": a}),
    lambda graph, a, _: graph.call_function(functional.hardtanh, (a,), {"inplace": True}),
    lambda graph, *_: graph.call_function(torch.rand, (4,)),
    lambda graph, a, _: graph.call_function(torch.dropout, (a, 0.5, True)),
)


def graph_condition(graph: Graph, a: Node) -> Node:
    condition = graph.call_function(operator.gt, (a, 0.0))
    condition.meta["example_value"] = torch.ones(4, dtype=torch.bool)
    return condition


def _random_graph(steps: Sequence[Step], outputs: Sequence[int]) -> tuple[CapturedGraph, set[Node]]:
    """A graph, and which of its nodes have an effect."""
    graph, effective = Graph(), set()
    tensors = [graph.placeholder("x"), graph.placeholder("y")]
    operations = (*PURE, *EFFECTIVE)
    for step in steps:
        first, second = (tensors[-1 - number % len(tensors)] for number in (step.first, step.second))
        made = operations[step.operation](graph, first, second)
        if step.operation >= len(PURE):
            effective.add(made)
        if made.target is not operator.setitem:
            tensors.append(made)
    for node in graph.nodes:
        node.meta.setdefault("example_value", torch.ones(4))
    graph.output(tuple(tensors[number % len(tensors)] for number in outputs))
    inputs = [torch.tensor([0.5, -1.0, 2.0, -0.25]), torch.tensor([1.0, 3.0, -2.0, 0.75])]
    return CapturedGraph(graph_module=GraphModule(torch.nn.Module(), graph), example_inputs=inputs), effective


_STEPS = st.lists(
    st.builds(
        Step,
        operation=st.integers(0, len(PURE) + len(EFFECTIVE) - 1),
        first=st.integers(0, 9),
        second=st.integers(0, 9),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(steps=_STEPS, outputs=st.lists(st.integers(0, 12), max_size=3))
def test_leaving_them_out_changes_nothing(steps: list[Step], outputs: list[int]) -> None:
    captured, effective = _random_graph(steps, outputs)
    _assert_faithful(captured, captured.example_inputs)
    # Everything else goes, as by torch's own elimination where that is told what has an effect.
    sent = captured.encode()
    captured.graph_module.graph.eliminate_dead_code(
        lambda node: node.op in ("placeholder", "output") or node in effective
    )
    assert len(sent.job.graph.nodes) == len(captured.graph_module.graph.nodes)
    assert key_of(captured.encode().job) == key_of(sent.job)


def test_operators_that_may_go_neither_write_nor_draw() -> None:
    told = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    for name in OPERATORS:
        packet = getattr(torch.ops.aten, name)
        for overload in (getattr(packet, overload) for overload in packet.overloads()):
            written = [a for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
            assert all(argument.is_out for argument in written), overload
            assert not set(told) & set(overload.tags), overload


def _with_full_digits(x: torch.Tensor) -> torch.Tensor:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    result = x @ x
    matmul.allow_tf32 = before
    return result


@pytest.mark.parametrize("allowed", [False, True])
def test_a_switch_of_another_device_that_is_put_back_is_not_sent(allowed: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        job = capture(_with_full_digits, torch.ones(2, 2)).encode().job
        plain = capture(lambda x: x @ x, torch.ones(2, 2)).encode().job
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert job.graph == plain.graph


def test_a_switch_that_stays_is_no_dead_node() -> None:
    def switched(*values: bool, device: str = "cpu") -> bool:
        graph = Graph()
        taken = graph.placeholder("x")
        with FakeTensorMode():
            taken.meta["example_value"] = torch.empty(1, device=device)
        for value in values:
            graph.call_function(torch._C._set_cublas_allow_tf32, (value,))
        graph.output((taken,))
        return len(find_dead_nodes(graph)) == len(values)

    now = torch.backends.cuda.matmul.allow_tf32
    assert switched(not now, now)
    assert not switched(not now)
    assert not switched(now, not now)
    assert switched(now, now, device="cuda")
    assert not switched(not now, now, device="cuda")


def _gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks("within"):
        y = x.sin()
    return torch.func.vmap(torch.func.grad(torch.sum))(y)


@pytest.mark.parametrize("disabled", [False, True], ids=["enabled", "disabled"])
def test_hooks_that_are_disabled_already_need_not_be_disabled(disabled: bool) -> None:
    x = torch.randn(3, 4)
    around = torch.autograd.graph.disable_saved_tensors_hooks("around") if disabled else contextlib.nullcontext()
    with around:
        job = capture(_gradients, x).encode().job
    assert any("saved_tensors_hooks" in call for call in _calls(job.graph)) is not disabled
    (result,) = decode_job(job, blobs={}).graph_module(x)
    assert torch.equal(result, torch.ones(3, 4))


def test_numbers_that_numpy_computes_of_numbers_leave_nothing_behind() -> None:
    """As monai's Swin transformers count windows."""
    job = capture(lambda x: x * int(np.ceil(x.shape[0] / 7)), torch.ones(8)).encode().job
    assert list(_calls(job.graph)) == list(_calls(capture(lambda x: x * 2, torch.ones(8)).encode().job.graph))
