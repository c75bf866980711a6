"""Graphs within a graph that ask for what the graph itself may not ask for: they are looked at like it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.compiling import compile_to_program
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.targets import (
    HIGHER_ORDER_OPERATOR,
    OPERATOR_OVERLOAD,
    OPERATOR_PACKET,
    PYTHON_FUNCTION,
    TENSOR_METHOD,
    TORCH_FUNCTION,
)
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.v1.graph_pb2 import Call, Graph, Node, Placeholder, Sequence, TargetKind, Value
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.operator_guard import guarding_operators
from tests.graph.test_subgraphs import PROGRAMS
from tests.worker.inductor import compiled

# Of these torch runs one body when it compiles, not when it runs them on fake tensors.
_DEFERRED = [
    *(("autograd function", 1), ("while_loop", 0), ("steps of a loop", 0)),
    *(("flex attention", 0), ("flex attention", 1)),
]
_RUN = [("cond", 0), ("cond", 1), ("scan", 0), ("map", 0), ("checkpoint", 0), ("nested region", 0)]


def _call(kind: TargetKind.ValueType, target: str, *args: Value) -> Node:
    return Node(call=Call(kind=kind, target=target, args=args))


def _bag_by_gradients(after: int) -> Iterator[Node]:
    yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(3, 3))
    yield _call(OPERATOR_OVERLOAD, "aten::arange", Value(integer=3))
    yield _call(PYTHON_FUNCTION, "builtins.getattr", Value(node=after), Value(text="requires_grad"))
    yield _call(PYTHON_FUNCTION, "operator.mul", Value(node=after + 2), Value(integer=-5))
    yield _call(PYTHON_FUNCTION, "operator.add", Value(node=after + 3), Value(integer=2))
    yield _call(OPERATOR_OVERLOAD, "aten::arange.start_step", *map(_integer, (0, 3)), Value(node=after + 4))
    yield _call(OPERATOR_OVERLOAD, "aten::embedding_bag", *(Value(node=after + step) for step in (0, 1, 5)))


def _integer(value: int) -> Value:
    return Value(integer=value)


def _numbers(*values: int) -> Value:
    return Value(list=Sequence(items=[Value(integer=value) for value in values]))


def _reaching_far(after: int) -> Iterator[Node]:
    yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(2))
    far = (Value(node=after), _numbers(3), _numbers(1), Value(integer=4000))
    yield _call(OPERATOR_OVERLOAD, "aten::as_strided", *far)


def _growing(_: int) -> Iterator[Node]:
    yield _call(PYTHON_FUNCTION, "operator.pow", Value(integer=10), Value(integer=10**6))


def _repeating(_: int) -> Iterator[Node]:
    yield _call(PYTHON_FUNCTION, "operator.mul", _numbers(1, 2), Value(integer=10**6))


def _converting(after: int) -> Iterator[Node]:
    # Torch's table of dtypes was read at place 127 by the same, and what lies there taken for an object.
    yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(2))
    yield _call(PYTHON_FUNCTION, "operator.add", Value(integer=4), Value(integer=2))
    yield _call(OPERATOR_PACKET, "aten::to", Value(node=after), Value(node=after + 1))


def _bag(after: int) -> Iterator[Node]:
    yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(3, 3))
    yield _call(OPERATOR_OVERLOAD, "aten::zeros", _numbers(3))
    yield _call(PYTHON_FUNCTION, "builtins.getattr", Value(node=after), Value(text="dtype"))
    yield _call(OPERATOR_OVERLOAD, "aten::_to_copy", Value(node=after + 1))
    yield _call(OPERATOR_OVERLOAD, "aten::embedding_bag", *(Value(node=after + step) for step in (0, 1, 3)))


def _recurring(after: int) -> Iterator[Node]:
    sizes = ((5, 3, 10), (1, 3, 64), (4, 2), (256, 64), (256,))
    for size in sizes:
        yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(*size))
    x, state, narrow, wide, bias = (Value(node=after + number) for number in range(len(sizes)))
    lists = [Value(list=Sequence(items=items)) for items in ([state, state], [narrow, wide, bias, bias])]
    no, layers, share = Value(boolean=False), Value(integer=1), Value(real=0.0)
    yield _call(OPERATOR_OVERLOAD, "aten::lstm.input", x, *lists, Value(boolean=True), layers, share, no, no, no)


def _least_power(after: int) -> Iterator[Node]:
    yield _call(OPERATOR_OVERLOAD, "aten::ones", _numbers(3, 3))
    yield _call(PYTHON_FUNCTION, "operator.sub", Value(integer=-(2**62)), Value(integer=2**62))
    yield _call(TORCH_FUNCTION, "torch.matrix_power", Value(node=after), Value(node=after + 1))


def _with(job: Job, body: int, nodes: Callable[[int], Iterator[Node]], *, within: int | None = None) -> Job:
    """The job with further nodes at the end of one of the graphs within its graph, or within one of these."""
    changed = Job.FromString(job.SerializeToString())
    graph = (changed.graph if within is None else changed.graph.subgraphs[within]).subgraphs[body]
    end = Node.FromString(graph.nodes[-1].SerializeToString())
    del graph.nodes[-1]
    graph.nodes.extend([*nodes(len(graph.nodes)), end])
    return changed


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    names = {name for name, _ in (*_DEFERRED, *_RUN)}
    return {name: capture(*PROGRAMS[name], fullgraph=True).encode().job for name in names}


@pytest.mark.parametrize(("name", "body"), _DEFERRED)
@pytest.mark.parametrize(
    ("nodes", "objection"),
    [
        (_reaching_far, "it reaches to element 4002 of a memory of 2 elements"),
        (_growing, "an operator that grows is called on large numbers"),
        (_bag, "its offsets are computed"),
        (_recurring, "its weights are"),
        (_bag_by_gradients, "asks more of tensors than their sizes"),
        (_converting, "torch may take aten::to.dtype, whose dtype is a ScalarType, not 6"),
        (_least_power, "it has no power -9223372036854775808"),
    ],
)
def test_a_body_that_only_the_compiler_runs(
    jobs: dict[str, Job], name: str, body: int, nodes: Callable[[int], Iterator[Node]], objection: str
) -> None:
    with pytest.raises(InvalidRequest, match=objection):
        decode_job(_with(jobs[name], body, nodes), blobs={})


@pytest.mark.parametrize(("name", "body"), _RUN)
def test_recurrent_networks_of_a_body(jobs: dict[str, Job], name: str, body: int) -> None:
    with pytest.raises(InvalidRequest, match="its weights are"):
        decode_job(_with(jobs[name], body, _recurring), blobs={})


@pytest.mark.parametrize(("name", "body"), _RUN)
@pytest.mark.parametrize("nodes", [_growing, _repeating])
def test_functions_that_grow(
    jobs: dict[str, Job], name: str, body: int, nodes: Callable[[int], Iterator[Node]]
) -> None:
    with pytest.raises(InvalidRequest, match="an operator that grows is called on large numbers or on lists"):
        decode_job(_with(jobs[name], body, nodes), blobs={})


@pytest.mark.parametrize(("name", "body"), _RUN)
def test_numbers_that_torch_takes_for_dtypes(jobs: dict[str, Job], name: str, body: int) -> None:
    with pytest.raises(InvalidRequest, match=r"torch may take aten::to\.dtype"):
        decode_job(_with(jobs[name], body, _converting), blobs={})


_OBJECTIONS = [(_growing, "an operator that grows is called on large numbers"), (_bag, "its offsets are computed")]


@pytest.mark.parametrize(("nodes", "objection"), _OBJECTIONS)
def test_a_body_within_a_body_that_only_the_compiler_runs(
    nodes: Callable[[int], Iterator[Node]], objection: str
) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, _counting, lambda y: y + 1, (x,))  # type: ignore[no-any-return]

    job = capture(model, torch.ones(3), fullgraph=True).encode().job
    decode_job(job, blobs={})
    for condition in range(2):
        with pytest.raises(InvalidRequest, match=objection):
            decode_job(_with(job, condition, nodes, within=0), blobs={})


def _counting(x: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda y: y.sum() < 10, lambda y: (y + 1,), (x,))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("nodes", "objection"), _OBJECTIONS)
def test_what_an_associative_scan_combines_by(nodes: Callable[[int], Iterator[Node]], objection: str) -> None:
    job = _scanning()
    decode_job(job, blobs={})
    with pytest.raises(InvalidRequest, match=objection):
        decode_job(_with(job, 0, nodes), blobs={})


def _scanning() -> Job:
    root = torch.nn.Module()
    root.combine = torch.fx.symbolic_trace(lambda x, y: (x + y,))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    scanned = graph.call_function(associative_scan_op, (graph.get_attr("combine"), (x,), ()))
    graph.output((graph.call_function(operator.getitem, (scanned, 0)),))
    module = torch.fx.GraphModule(root, graph)
    return encode_job(module, [torch.ones(4, 3)], options={}, environment=fixed_environment).job


def test_a_body_that_is_never_run(jobs: dict[str, Job]) -> None:
    job = Job.FromString(jobs["cond"].SerializeToString())
    output = job.graph.nodes.pop()
    job.graph.nodes.add().get_subgraph.subgraph = len(job.graph.subgraphs)
    job.graph.nodes.append(output)
    job.graph.subgraphs.add().CopyFrom(job.graph.subgraphs[0])
    with pytest.raises(InvalidRequest, match="a graph within the graph is never run"):
        decode_job(job, blobs={})


def test_a_graph_is_given_to_operators_that_run_graphs(jobs: dict[str, Job]) -> None:
    """What else would run it, a library or Python, does so unseen."""
    job = Job.FromString(jobs["cond"].SerializeToString())
    number = next(number for number, node in enumerate(job.graph.nodes) if node.HasField("get_subgraph"))
    given = Call(kind=PYTHON_FUNCTION, target="builtins.max", args=[_numbers(1, 2)])
    given.kwargs.add(name="key").value.node = number
    output = job.graph.nodes.pop()
    job.graph.nodes.add().call.CopyFrom(given)
    job.graph.nodes.append(output)
    with pytest.raises(InvalidRequest, match=r"builtins\.max: it takes no graph"):
        decode_job(job, blobs={})
    del job.graph.nodes[-2]
    job.graph.nodes[-1].output.values.add(node=number)
    with pytest.raises(InvalidRequest, match="a graph returns no text, no dictionary and no graph"):
        decode_job(job, blobs={})


def test_functions_of_a_body_are_pythons_own_afterwards(jobs: dict[str, Job]) -> None:
    body = decode_job(jobs["flex attention"], blobs={}).graph_module.get_submodule("subgraph_0")
    assert operator.sub in {node.target for node in body.graph.nodes}  # type: ignore[union-attr]


@pytest.mark.compiles
def test_a_body_that_asks_whether_gradients_are_wanted_while_it_is_compiled() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.as_strided(y * 2, (3,), (1,), 0) + 1, x, use_reentrant=False)  # type: ignore[no-any-return]

    job = capture(model, torch.ones(12, requires_grad=True)).encode().job
    _view_far_with_gradients(job.graph.subgraphs[0])
    # Without gradients, as it runs now, the body views its first elements.
    decoded = decode_job(job, blobs={})
    with (
        pytest.raises(InvalidRequest, match="it reaches to element 4002 of a memory of 12 elements"),
        guarding_operators(calls_views=False),
    ):
        compile_to_program(
            decoded.graph_module,
            decoded.inputs,
            fake_mode=decoded.fake_mode,
            inductor_options={},
            functorch_options={},
        )


def _view_far_with_gradients(body: Graph) -> None:
    (number,) = (number for number, node in enumerate(body.nodes) if "as_strided" in node.call.target)
    asked = _call(PYTHON_FUNCTION, "builtins.getattr", Value(node=number - 1), Value(text="requires_grad"))
    times = _call(PYTHON_FUNCTION, "operator.mul", Value(node=number), Value(integer=4000))
    later = [Node.FromString(node.SerializeToString()) for node in body.nodes[number:]]
    later[0].call.args[3].node = number + 1
    for node in later[1:]:
        _renumber(node, by=2, beyond=number)
    del body.nodes[number:]
    body.nodes.extend([asked, times, *later])


def _renumber(node: Node, *, by: int, beyond: int) -> None:
    values = [*node.call.args, node.output.result, *node.output.result.tuple.items, *node.output.result.list.items]
    for value in values:
        if value.WhichOneof("kind") == "node" and value.node >= beyond:
            value.node += by


def _calling(times: int, *, levels: int) -> Graph:
    """A graph that calls another so often, which calls a third as often, and so on; the last one does nothing."""
    graph = Graph(nodes=[Node(placeholder=Placeholder())])
    if levels:
        graph.subgraphs.append(_calling(times, levels=levels - 1))
        graph.nodes.add().get_subgraph.subgraph = 0
        called = [Value(node=1), Value(node=0)]
        graph.nodes.extend(_call(HIGHER_ORDER_OPERATOR, "wrap", *called) for _ in range(times))
    graph.nodes.add().output.result.node = 0
    return graph


def test_bodies_that_call_each_other_many_times(jobs: dict[str, Job]) -> None:
    changed = Job.FromString(jobs["checkpoint"].SerializeToString())
    changed.graph.subgraphs[0].CopyFrom(_calling(7, levels=2))
    changed.graph.nodes[-1].output.values[0].node = 0
    decode_job(changed, blobs={})
    changed.graph.subgraphs[0].CopyFrom(_calling(7, levels=7))
    with pytest.raises(InvalidRequest, match="graphs call each other so that more than 200000 nodes run"):
        decode_job(changed, blobs={})


def test_a_region_is_called_with_what_it_is_made_for() -> None:
    """It is made once, for floats; bytes would be read as such, beyond their end. Torch 2.15 says so itself."""
    captured = capture(*PROGRAMS["nested region"], fullgraph=True)
    graph = captured.graph_module.graph
    first, second = (node for node in graph.nodes if node.target is torch.ops.higher_order.invoke_subgraph)
    with graph.inserting_before(second):
        smaller = graph.call_function(torch.ops.aten.to.dtype, (first.args[2], torch.uint8))
    second.args = (*second.args[:2], smaller)
    (results,) = graph.output_node().args
    graph.output_node().args = ((*results, *first.users),)
    captured.graph_module.recompile()
    told = r"compiled as torch.uint8\[3\]|must have consistent values"
    with pytest.raises(Exception, match=told):
        compiled(captured.encode())


def _sort(graph: Graph) -> None:
    """Has a graph sort a list, which one within it makes, by another."""
    end, first, number = graph.nodes.pop(), len(graph.subgraphs), len(graph.nodes)
    listing, by = graph.subgraphs.add(), graph.subgraphs.add()
    listing.nodes.add().placeholder.SetInParent()
    listing.nodes.add().output.result.CopyFrom(_numbers(*range(10)))
    by.nodes.add().placeholder.SetInParent()
    by.nodes.append(_call(PYTHON_FUNCTION, "operator.neg", Value(node=0)))
    by.nodes.add().output.result.node = 1
    for subgraph in (first, first + 1):
        graph.nodes.add().get_subgraph.subgraph = subgraph
    graph.nodes.append(_call(HIGHER_ORDER_OPERATOR, "wrap", Value(node=number), Value(node=0)))
    graph.nodes.append(_call(TENSOR_METHOD, "sort", Value(node=number + 2)))
    graph.nodes[-1].call.kwargs.add(name="key").value.node = number + 1
    graph.nodes.append(end)


@pytest.mark.parametrize("is_within", [False, True])
def test_a_method_of_a_list_runs_no_graph(jobs: dict[str, Job], is_within: bool) -> None:
    # It ran one for each item of the list, and nothing counted how often.
    changed = Job.FromString(jobs["cond"].SerializeToString())
    _sort(changed.graph.subgraphs[0] if is_within else changed.graph)
    with pytest.raises(InvalidRequest, match="sort: it takes no graph"):
        decode_job(changed, blobs={})
