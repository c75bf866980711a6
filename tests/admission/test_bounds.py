"""Graphs that ask for memory outside of their tensors, or for more than any model: refused before they are compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch.fx import Graph, GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import bounds
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.literals import MOST_COUNTED
from compilefarm.graph.symbols import put_guards
from compilefarm.graph.testing import capture, fixed_environment, trace
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.numpy_calls import numpy_calls
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv
from compilefarm.v1.graph_pb2 import Range, TargetKind, Value
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.operator_guard import guarding_operators
from tests.worker.inductor import compiled


def decode(function: Callable[..., Any], *args: object, **kwargs: object) -> DecodedJob:
    """Has a graph decoded that makes a tensor of twelve ones, and calls a function with that and with `args`."""
    graph = Graph()
    made = graph.call_function(torch.add, (graph.placeholder("x"), 1))
    graph.output((graph.call_function(function, (made, *args), dict(kwargs)),))
    graph_module = GraphModule(torch.nn.Module(), graph)
    job = encode_job(graph_module, [torch.zeros(12)], options={}, environment=fixed_environment).job
    return decode_job(job, blobs={})


@pytest.mark.parametrize(
    "function",
    [
        torch.as_strided,
        torch.ops.aten.as_strided.default,
        torch.ops.aten.as_strided_.default,
        torch.as_strided_copy,
    ],
)
@pytest.mark.parametrize(
    ("sizes", "steps", "offset"),
    [
        ((4,), (1,), 2**40),
        ((13,), (1,), 0),
        ((2,), (12,), 0),
        ((2, 7), (6, 1), 0),
        ((1,), (1,), 12),
        ((2,), (2**60,), 0),
    ],
)
def test_a_view_beyond_its_memory(
    function: Callable[..., Any], sizes: tuple[int, ...], steps: tuple[int, ...], offset: int
) -> None:
    with pytest.raises(InvalidRequest, match=r"node 2 .*it reaches to element \d+ of a memory of 12 elements"):
        decode(function, sizes, steps, offset)


@pytest.mark.parametrize(
    ("sizes", "steps", "offset"),
    [((12,), (1,), 0), ((3, 4), (4, 1), None), ((3, 10), (1, 1), 0), ((1,), (1,), 11), ((0,), (1,), 0), ((), (), 11)],
)
def test_views_of_all_that_a_tensor_has_are_taken(
    sizes: tuple[int, ...], steps: tuple[int, ...], offset: int | None
) -> None:
    (view,) = decode(torch.as_strided, sizes, steps, offset).graph_module(torch.zeros(12))
    assert torch.equal(view, torch.ones(12).as_strided(sizes, steps, offset))


def test_a_write_beyond_the_memory_of_a_tensor() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter(x + 1, x[:2], (2,), (1,), 3)

    job = capture(model, torch.ones(12)).encode().job
    decode_job(job, blobs={})
    offset = next(
        given
        for node in job.graph.nodes
        if node.call.target.endswith("as_strided_scatter")
        for given in node.call.args
        if given.integer == 3
    )
    offset.integer = 4000
    with pytest.raises(InvalidRequest, match="it reaches to element 4001"):
        decode_job(job, blobs={})


def test_the_memory_of_a_symbolic_size() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x + 1, (x.shape[0] - 1, 2), (1, 1))

    decode_job(capture(model, torch.ones(12), dynamic=True).encode().job, blobs={})


def test_sizes_that_depend_on_elements_are_no_obstacle() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].cumsum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        decode_job(capture(model, torch.ones(12)).encode().job, blobs={})


@pytest.mark.parametrize("function", [torch.as_strided, torch.as_strided_copy])
def test_a_view_at_a_place_that_depends_on_elements(function: Callable[..., torch.Tensor]) -> None:
    def model(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return function(x + 1, (2,), (1,), places.max().item())

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        job = trace(model, torch.ones(12), torch.arange(3)).encode().job
    with pytest.raises(InvalidRequest, match="whether it stays within its memory depends on elements"):
        decode_job(job, blobs={})


def test_a_view_that_fits_the_sizes_at_hand_and_not_others() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x + 1, (y.shape[0],), (1,)) * 2

    decoded = decode_job(capture(model, torch.ones(12), torch.ones(9), dynamic=True).encode().job, blobs={})
    assert not put_guards(decoded.symbolic.guards(), [9, 12])  # type: ignore[list-item]
    assert put_guards(decoded.symbolic.guards(), [12, 12])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.split, (1,)),
        (torch.unbind, ()),
        (torch.chunk, (2**20,)),
        (numpy_calls()["torch._numpy.split"], (2**20,)),
        (numpy_calls()["torch._numpy.array_split"], (2**20,)),
    ],
)
def test_a_tensor_that_is_taken_apart_into_more_parts_than_any_model_has(
    function: Callable[..., Any], args: tuple[object, ...]
) -> None:
    graph = Graph()
    graph.placeholder("x")
    long = graph.call_function(torch.ones, (2**20,))
    graph.output((graph.call_function(operator.getitem, (graph.call_function(function, (long, *args)), 0)),))
    graph_module = GraphModule(torch.nn.Module(), graph)
    job = encode_job(graph_module, [torch.zeros(1)], options={}, environment=fixed_environment).job
    with pytest.raises(InvalidRequest, match="makes 1048576 tensors of one"):
        decode_job(job, blobs={})


def test_ranges_that_count_for_ever() -> None:
    with pytest.raises(Bypass, match=f"more than {MOST_COUNTED} numbers"):
        decode(torch.reshape, range(2**62))
    job = capture(torch.relu, torch.ones(3)).encode().job
    job.graph.nodes[1].call.args[0].CopyFrom(Value(range=Range(start=-(2**63), stop=2**63 - 1, step=1)))
    with pytest.raises(InvalidRequest, match=f"node 1: a range counts more than {MOST_COUNTED} numbers"):
        decode_job(job, blobs={})


def job_of_nodes(write: Callable[[Graph], object]) -> Job:
    graph = Graph()
    graph.placeholder("x")
    write(graph)
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    return encode_job(module, [torch.zeros(1)], options={}, environment=fixed_environment).job


@pytest.mark.parametrize("differs", [False, True], ids=["a number", "a symbol"])
@pytest.mark.parametrize(
    ("kind", "target", "argument"),
    [
        (TargetKind.TARGET_KIND_TENSOR_METHOD, "__pow__", 4000),
        (TargetKind.TARGET_KIND_TENSOR_METHOD, "__rpow__", 7),
        (TargetKind.TARGET_KIND_PYTHON_FUNCTION, "operator.pow", 4000),
        (TargetKind.TARGET_KIND_PYTHON_FUNCTION, "operator.lshift", 4000),
    ],
)
def test_sizes_are_not_raised_beyond_what_sizes_are(
    kind: TargetKind.ValueType, target: str, argument: int, differs: bool
) -> None:
    """Python computes with them, and torch with what symbols are in the call at hand."""
    job = job_of_nodes(lambda graph: graph.call_method("size", (graph.find_nodes(op="placeholder")[0], 0)))
    job.inputs[0].tensor.shape[0].size = 3000
    if differs:
        job.inputs[0].tensor.shape[0].expression.symbol = 0
        job.symbols.add()
        job.hints.append(3000)
    job.graph.nodes.insert(2, job.graph.nodes[1])
    call = job.graph.nodes[2].call
    call.kind, call.target = kind, target
    del call.args[:]
    call.args.extend((Value(node=1), Value(integer=argument)))
    with pytest.raises(InvalidRequest, match="an operator that grows is called on large numbers or on lists"):
        decode_job(job, blobs={})


@pytest.mark.parametrize("name", ["__mul__", "__rmul__", "__add__"])
@pytest.mark.parametrize("nested", [False, True], ids=["", "in a subgraph"])
def test_lists_do_not_grow_by_methods(name: str, nested: bool) -> None:
    def write(graph: Graph) -> None:
        sizes = graph.call_method("size", (graph.find_nodes(op="placeholder")[0],))
        graph.call_method("sub", (sizes, 2))

    job = job_of_nodes(write)
    job.graph.nodes[2].call.target = name
    if nested:
        job = _within_a_subgraph(job)
    with pytest.raises(InvalidRequest, match="an operator that grows is called on large numbers or on lists"):
        decode_job(job, blobs={})


def _within_a_subgraph(job: Job) -> Job:
    """A job of which the graph is called by one around it."""
    outer = Job()
    outer.CopyFrom(job)
    inner = outer.graph.subgraphs.add()
    inner.CopyFrom(job.graph)
    inner.nodes[-1].output.result.tuple.items.add(node=0)
    del outer.graph.nodes[1:]
    outer.graph.nodes.add().get_subgraph.subgraph = 0
    call = outer.graph.nodes.add().call
    call.kind, call.target = TargetKind.TARGET_KIND_HIGHER_ORDER_OPERATOR, "wrap"
    call.args.extend((Value(node=1), Value(node=0)))
    outer.graph.nodes.add().output.SetInParent()
    return outer


@pytest.mark.parametrize(
    ("name", "args"), [("pow", (7, 4000)), ("lshift", (1, 4000)), ("mul", ([0], 2000)), ("add", ([0], [0]))]
)
def test_operators_of_numpy_on_plain_numbers_and_lists_are_held_to_what_those_of_python_are(
    name: str, args: tuple[object, ...]
) -> None:
    job = job_of_nodes(lambda graph: graph.call_function(numpy_calls()[f"torch._numpy.operator.{name}"], args))
    with pytest.raises(InvalidRequest, match="an operator that grows is called on large numbers or on lists"):
        decode_job(job, blobs={})


def double(graph: Graph, times: int, *, function: Callable[..., object], rest: tuple[object, ...]) -> object:
    held: object = 1
    for _ in range(times):
        held = graph.call_function(function, ([held, held], *rest))
    return held


@pytest.mark.parametrize(
    ("function", "rest"),
    [(operator.getitem, (slice(None),)), (numpy_calls()["torch._numpy.ndarray.copy"], ())],
    ids=["slices", "copies"],
)
def test_lists_that_double_with_each_node(function: Callable[..., object], rest: tuple[object, ...]) -> None:
    decode_job(job_of_nodes(lambda graph: double(graph, 8, function=function, rest=rest)), blobs={})
    with pytest.raises(InvalidRequest, match="its lists hold lists of too many things"):
        decode_job(job_of_nodes(lambda graph: double(graph, 12, function=function, rest=rest)), blobs={})


def test_an_array_of_more_dimensions_than_any_tensor_has() -> None:
    array = numpy_calls()["torch._numpy.array"]
    job = job_of_nodes(lambda graph: graph.call_function(array, ([1, 2],), {"ndmin": 3}))
    decode_job(job, blobs={})
    job.graph.nodes[1].call.kwargs[0].value.integer = 10_000
    with pytest.raises(InvalidRequest, match="an array has at most 64 dimensions"):
        decode_job(job, blobs={})


def test_digits_of_a_rounded_number_that_are_given_by_name() -> None:
    job = job_of_nodes(lambda graph: graph.call_function(round, (12345, -1)))
    decode_job(job, blobs={})
    call = job.graph.nodes[1].call
    given = call.kwargs.add()
    given.name = "ndigits"
    given.value.integer = -10_000
    del call.args[1:]
    with pytest.raises(InvalidRequest, match="how many digits is said by place"):
        decode_job(job, blobs={})


def test_a_graph_that_comes_down_to_more_operators_than_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.nn.functional.gelu(x)
        return x

    job = capture(model, torch.ones(3)).encode().job
    decode_job(job, blobs={})
    monkeypatch.setattr(bounds, "MOST_OPERATORS", 5)
    monkeypatch.setattr(bounds, "MOST_OPERATORS_PER_NODE", 0)
    with pytest.raises(InvalidRequest, match="more operators than any model"):
        decode_job(job, blobs={})


@pytest.mark.parametrize(
    "name",
    [
        *("aten::adaptive_max_pool2d_backward", "aten::embedding_dense_backward", "aten::native_layer_norm_backward"),
        *("aten::mkldnn_rnn_layer", "aten::slow_conv_transpose2d", "aten::batch_norm_update_stats"),
        *("aten::segment_reduce", "aten::sparse_coo_tensor", "aten::_unsafe_masked_index"),
        *("aten::set_.source_Tensor", "aten::to_mkldnn", "aten::embedding_renorm_", "prims::copy_strided"),
        *("aten::quantized_lstm", "aten::flatten_dense_tensors", "prims::as_strided"),
        *("prims::inductor_lookup_seed", "quantized::embedding_bag_byte_unpack", "onednn::linear_relu_mkldnn"),
    ],
)
def test_operators_that_believe_what_they_are_told_of_places(name: str) -> None:
    job = capture(torch.relu, torch.ones(3)).encode().job
    for kind in (TargetKind.TARGET_KIND_OPERATOR_PACKET, TargetKind.TARGET_KIND_OPERATOR_OVERLOAD):
        job.graph.nodes[1].call.kind, job.graph.nodes[1].call.target = kind, name
        with pytest.raises(InvalidRequest, match="is not among the functions that a request may call"):
            decode_job(job, blobs={})


@pytest.mark.parametrize("is_operator", [False, True])
@pytest.mark.parametrize(("results", "sizes"), [(1, ()), (1, (0,)), (1, (16,)), (2, (0,))])
def test_what_is_given_for_a_result_is_of_its_size(is_operator: bool, results: int, sizes: tuple[int, ...]) -> None:
    # Where it is not, a graph that asks how large it is now is answered otherwise when it is compiled, and reads there
    # what was not looked at, wherever that lies.
    of_one, of_two = (torch.ops.aten.add.out, torch.ops.aten.sort.values) if is_operator else (torch.add, torch.sort)
    graph = Graph()
    made = graph.call_function(torch.add, (graph.placeholder("x"), 1))
    given = [graph.call_function(torch.empty, (sizes,)) for _ in range(results)]
    if results == 1:
        graph.call_function(of_one, (made, 1), {"out": given[0]})
    else:
        given[1] = graph.call_function(torch.empty, (sizes,), {"dtype": torch.int64})
        names = {"values": given[0], "indices": given[1]} if is_operator else {"out": tuple(given)}
        graph.call_function(of_two, (made,), names)
    graph.output((made,))
    module = GraphModule(torch.nn.Module(), graph)
    job = encode_job(module, [torch.zeros(12)], options={}, environment=fixed_environment).job
    with pytest.raises(InvalidRequest, match="given for a result is of another size"):
        decode_job(job, blobs={})


def test_a_place_that_depends_on_elements_is_refused_while_a_graph_is_compiled_too() -> None:
    refusing = pytest.raises(InvalidRequest, match="whether it stays within its memory depends on elements")
    with refusing, FakeTensorMode(shape_env=ShapeEnv()), guarding_operators(calls_views=True):
        torch.as_strided(torch.ones(8), (1,), (1,), torch.empty((), dtype=torch.int64).item())  # type: ignore[arg-type]


@pytest.mark.parametrize("part_of", ["computed", "given"])
def test_a_view_of_a_part_reaches_no_further_where_the_compiler_takes_the_part_for_a_tensor(part_of: str) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pair = (x, y) if part_of == "given" else (x + 1, y * 2)
        first, _ = torch.cat(pair, 1).split([12, 12], 1)
        return first.as_strided((1,), (1,), 23) + 1

    job = capture(model, torch.ones(1, 12), torch.ones(1, 12)).encode()
    with pytest.raises(InvalidRequest, match=r"reaches (over 96 bytes|to element 23) of a memory of (48|12)"):
        compiled(job)


def test_what_a_backward_is_given_may_have_gaps_between_its_rows() -> None:
    """On GPUs Inductor has rows of more than 1,024 elements begin at multiples of 128 bytes, and AOTAutograd says so of
    the fake tensor. `python -m tests.gpu` trains with such rows.
    """
    sizes, strides = (8, 1177), (1184, 1)
    with FakeTensorMode(), guarding_operators(calls_views=False):
        assert torch.empty(sizes).as_strided(sizes, strides).stride() == strides
    for graph_calls_views, asked in (
        (True, (sizes, strides)),
        (False, ((9, 1177), (1177, 1))),
        (False, (sizes, strides, 1)),
    ):
        refusing = pytest.raises(InvalidRequest, match="it reaches to element")
        with FakeTensorMode(), refusing, guarding_operators(calls_views=graph_calls_views):
            torch.empty(sizes).as_strided(*asked)


def test_a_view_of_an_input_that_does_not_begin_with_its_memory() -> None:
    job = capture(lambda x: torch.as_strided(x, (4,), (1,), 3) + 1, torch.ones(12)).encode().job
    decode_job(job, blobs={})
    job.inputs[0].tensor.storage_offset.size = 3
    with pytest.raises(InvalidRequest, match="input 0 begins at an offset, and the graph calls as_strided"):
        decode_job(job, blobs={})


def test_a_number_that_a_node_results_in_is_no_dtype() -> None:
    job = capture(lambda x: x.to(torch.float64), torch.ones(3)).encode().job
    call = job.graph.nodes[1].call
    call.kind, call.target = TargetKind.TARGET_KIND_OPERATOR_OVERLOAD, "aten::_to_copy"
    computed = job.graph.nodes.add()
    computed.call.kind, computed.call.target = TargetKind.TARGET_KIND_PYTHON_FUNCTION, "operator.add"
    computed.call.args.extend([Value(integer=999), Value(integer=0)])
    del call.args[1:], call.kwargs[:]
    call.kwargs.add(name="dtype", value=Value(node=1))
    nodes = [job.graph.nodes[0], computed, job.graph.nodes[1], job.graph.nodes[2]]
    nodes[3].output.values[0].node = 2
    job.graph.nodes.extend(nodes)
    del job.graph.nodes[:4]
    with pytest.raises(InvalidRequest, match="dtype is a"):
        decode_job(job, blobs={})


def test_expressions_that_are_long_when_they_are_multiplied_out() -> None:
    symbols = sympy.symbols("s0:10", integer=True, positive=True)
    assert bounds.is_too_long(sum(symbols) ** 12)
    assert bounds.is_too_long(sympy.Mul(*(sum(symbols) + number for number in range(4))))
    assert not bounds.is_too_long(sum(symbols) ** 2 * symbols[0] // 3)
