"""Sizes that differ from call to call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from torch._dynamo import mark_dynamic
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule

from compilefarm.core import expressions
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import holds, say
from compilefarm.core.keys import key_of
from compilefarm.graph import bodies
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, GraphRejected, decode_job
from compilefarm.graph.dynamic_floats import is_dynamic_float
from compilefarm.graph.symbols import Inexpressible, put_guards
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.graph.tracing import faking, fixing_deciding_floats, fixing_floats
from compilefarm.v1.graph_pb2 import Call, Node, TargetKind, Value
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.inputs import random_inputs


def dynamic(model: Callable[..., Any], *args: Any) -> CapturedGraph:
    return capture(model, *args, dynamic=True)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


def test_sizes_become_symbols_in_the_order_in_which_inputs_mention_them() -> None:
    job = dynamic(lambda x, y: torch.cat([x, y], 1), torch.ones(8, 3), torch.ones(8, 5)).encode().job
    assert list(job.hints) == [8, 3, 5]
    assert [symbol.lower for symbol in job.symbols] == [2, 2, 2]
    tensors = [given.tensor for given in job.inputs if given.HasField("tensor")]
    assert [[say(size.expression) for size in tensor.shape] for tensor in tensors] == [["s0", "s1"], ["s0", "s2"]]
    assert say(tensors[0].stride[0].expression) == "s1"


def test_the_call_at_hand_is_not_in_the_key() -> None:
    jobs = [dynamic(doubled, torch.ones(rows, 3)).encode().job for rows in (4, 700)]
    assert jobs[0].hints[0] != jobs[1].hints[0]
    assert key_of(jobs[0]).text == key_of(jobs[1]).text


def test_names_of_arguments_are_not_in_the_key() -> None:
    # torch names symbols by where they come from, and orders products by these names; strides hold such products.
    functions = [eval(f"lambda {name}: {name} * 2") for name in "abcdefgh"]
    jobs = [dynamic(function, torch.ones(3, 4, 5, 6)).encode().job for function in functions]
    assert {key_of(job).text for job in jobs} == {key_of(jobs[0]).text}


def test_what_is_known_of_a_symbol_is_in_the_key() -> None:
    def key(least: int, most: int) -> str:
        x = torch.ones(8, 3)
        mark_dynamic(x, 0, min=least, max=most)
        return key_of(capture(doubled, x).encode().job).text

    assert len({key(2, 64), key(2, 32), key(4, 64)}) == 3
    assert key(2, 64) == key(2, 64)


def test_a_dynamic_size_is_not_a_fixed_one() -> None:
    assert key_of(dynamic(doubled, torch.ones(4, 3)).encode().job) != key_of(
        capture(doubled, torch.ones(4, 3)).encode().job
    )


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (doubled, (torch.ones(4, 3),)),
        (lambda x: x.view(-1, x.shape[1] // 2) + x.shape[0] % 3, (torch.ones(4, 6),)),
        (lambda x: x[:, : x.shape[1] - 1].transpose(0, 1), (torch.ones(4, 6),)),
        (lambda x: x + torch.ones(max(x.shape[0], 3), 1), (torch.ones(4, 6),)),
        (lambda x, n: x * n, (torch.ones(4), 7)),
        (lambda x: x.t() @ x, (torch.ones(6, 4).t(),)),
        (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), (torch.ones(4, 6),)),
        (lambda x: x / math.sqrt(x.shape[1]) + math.log2(x.shape[0]), (torch.ones(4, 6),)),
        (lambda x: x / math.log10(x.shape[0]) + math.hypot(x.shape[1], 2.0), (torch.ones(4, 6),)),
        (lambda x: x.expand(torch.Size([2]) + x.size()).reshape((*x.size()[:-1], 2, -1)), (torch.ones(4, 6),)),
    ],
)
def test_a_decoded_graph_computes_the_same_at_other_sizes(model: Callable[..., Any], args: tuple[Any, ...]) -> None:
    encoded = dynamic(model, *args).encode()
    graph = decode_job(encoded.job, blobs={}).graph_module
    other = Job()
    other.CopyFrom(encoded.job)
    other.hints[:] = [2 * hint for hint in encoded.job.hints]
    for job in (encoded.job, other):
        given = random_inputs(job, seed=0)
        originals = [value for value in given if isinstance(value, torch.Tensor)]
        number = [job.hints[-1]] if isinstance(args[-1], int) else []
        torch.testing.assert_close(graph(*given)[0], model(*originals, *number))


def test_a_decoded_graph_is_encoded_as_it_was() -> None:
    encoded = dynamic(lambda x: x.view(-1, x.shape[1] // 2), torch.ones(4, 6)).encode()
    decoded = decode_job(encoded.job, blobs={})
    inputs = [node.meta["example_value"] for node in decoded.graph_module.graph.find_nodes(op="placeholder")]
    again = CapturedGraph(graph_module=decoded.graph_module, example_inputs=inputs).encode()
    assert again.job == encoded.job


def test_what_a_graph_assumes_comes_out_as_guards() -> None:
    encoded = dynamic(lambda x: x.view(-1, 4) * 2, torch.ones(4, 6)).encode()
    guards = decode_job(encoded.job, blobs={}).symbolic.guards()
    assert holds(guards, encoded.job.hints)
    assert not holds(guards, [3, 3]), [say(guard) for guard in guards]


@pytest.mark.parametrize(
    ("assume", "false_for"),
    [
        # As Inductor's padding of matrix products does on GPUs.
        (lambda size: size * 640 / (size * 74 + 640) > 3.5, 4),
        (lambda size: torch.sym_float(size) <= 16.5, 17),
        # As paddings to a multiple ask it.
        (lambda size: math.ceil(size / 8) != 1, 8),
        (lambda size: math.floor(size / 8) == 2, 30),
        # As images are scaled, and slices end.
        (lambda size: torch.sym_int(size * 1.5) == 24, 20),
        (lambda size: math.floor(size * 0.3) < 5, 20),
        (lambda size: math.ceil(size * 0.3) < 6, 20),
        (lambda size: round(size / 2 + 1) != 3, 4),
        # As sides of squares, and numbers of levels.
        (lambda size: torch.sym_int(size**0.5) == 4, 25),
        (lambda size: torch.sym_int(torch.sym_sqrt(size)) < 5, 25),
        (lambda size: math.ceil(torch._sym_log2(size)) <= 4, 17),
        (lambda size: 2.0 ** (size / 8) > 3.5, 8),
        # As an end of a slice that has none.
        (lambda size: size < 2**63 - 1, 2**63 - 1),
    ],
)
def test_comparisons_of_fractions_and_with_the_largest_integer_are_guards(
    assume: Callable[[Any], Any], false_for: int
) -> None:
    def decoded() -> DecodedJob:
        return decode_job(dynamic(doubled, torch.ones(16, 3)).encode().job, blobs={})

    symbolic = decoded().symbolic
    assert assume(symbolic.symbols.values[0])
    guards = symbolic.guards()
    (said,) = map(say, guards)
    assert holds(guards, [16]), said
    assert not holds(guards, [false_for]), said
    # In the process that loads the program they become torch's own.
    other = decoded().symbolic
    assert put_guards(guards, other.symbols.values)
    assert other.guards() == guards


def test_what_holds_of_all_numbers_is_no_guard() -> None:
    symbolic = decode_job(dynamic(doubled, torch.ones(16, 3)).encode().job, blobs={}).symbolic
    size = symbolic.symbols.values[0]
    # Of torch 2.11, for a slice without an end. Symbols may be larger, as far as torch knows.
    assert size < 2**63
    assert symbolic.guards() == []
    assert size + 1 < 2**63
    with pytest.raises(Inexpressible, match="is too large"):
        symbolic.guards()


def test_an_assumption_that_cannot_be_said_is_named() -> None:
    symbolic = decode_job(dynamic(doubled, torch.ones(4, 3)).encode().job, blobs={}).symbolic
    size = symbolic.symbols.values[0]
    assert torch._sym_sin(size) < 1
    with pytest.raises(Inexpressible, match=r"the compiler assumed .*sin.*, which cannot be said: OpaqueUnaryFn_sin"):
        symbolic.guards()


def test_assumptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_GUARD_TERMS", 4)
    symbolic = decode_job(dynamic(doubled, torch.ones(16, 3)).encode().job, blobs={}).symbolic
    size = symbolic.symbols.values[0]
    assert size < 100
    symbolic.guards()
    assert size % 4 == 0
    with pytest.raises(Inexpressible, match="an assumption of the compiler is one of too many"):
        symbolic.guards()


def test_an_assumption_about_a_symbol_that_is_no_input_is_named() -> None:
    symbolic = decode_job(dynamic(doubled, torch.ones(4, 3)).encode().job, blobs={}).symbolic
    env, source = symbolic.shape_env, ConstantSource("made by a pass of the compiler")
    unknown = env.create_symintnode(env.create_symbol(2, source), hint=2, source=source)
    assert unknown < symbolic.symbols.values[0]
    name = str(unknown.node.expr)
    with pytest.raises(Inexpressible) as caught:
        symbolic.guards()
    assert str(caught.value).startswith("the compiler assumed ")
    assert str(caught.value).endswith(f", which cannot be said: {name} is not known before the graph runs")


def test_integers_within_a_graph_of_a_graph_stay_of_a_size() -> None:
    size = decode_job(dynamic(doubled, torch.ones(4, 3)).encode().job, blobs={}).symbolic.symbols.values[0]
    multiply = bodies._guarded(operator.mul)
    with pytest.raises(InvalidRequest, match="an integer in a subgraph grows beyond what any size is"):
        reduce(lambda value, _: multiply(value, value), range(8), size)


def test_sizes_that_depend_on_elements() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        encoded = capture(lambda x: torch.nonzero(x) * 2, torch.ones(4), fullgraph=True).encode()
        decoded = decode_job(encoded.job, blobs={})
        assert decoded.depends_on_elements
        (result,) = decoded.graph_module(torch.tensor([0.0, 1.0, 1.0, 0.0]))
    torch.testing.assert_close(result, torch.tensor([[2], [4]]))


def test_an_input_of_which_no_size_is_known_is_a_bypass() -> None:
    x = torch.ones(4, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    with pytest.raises(Bypass) as caught:
        capture(lambda x: x * 2, x).encode()
    assert caught.value.reason == "unbacked_input"


def hostile(change: Callable[[Job], object]) -> Job:
    job = dynamic(doubled, torch.ones(4, 3)).encode().job
    change(job)
    return job


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job.hints.pop(),
        lambda job: job.hints.__setitem__(0, -4),
        lambda job: job.inputs[0].integer.ClearField("value"),
        lambda job: setattr(job.inputs[0].integer, "symbol", 99),
        lambda job: job.inputs[-1].tensor.shape[0].expression.ClearField("value"),
        lambda job: setattr(job.inputs[-1].tensor.stride[0].expression, "integer", 1),
        lambda job: setattr(job.inputs[-1].tensor.shape[0].expression, "integer", -1),
        lambda job: setattr(job.inputs[-1].tensor.shape[0].expression, "integer", 2**61),
    ],
)
def test_sizes_that_contradict_themselves(change: Callable[[Job], object]) -> None:
    with pytest.raises(InvalidRequest):
        decode_job(hostile(change), blobs={})


@pytest.mark.parametrize("function", ["operator.mul", "operator.add", "operator.pow"])
def test_integers_that_grow_without_end_are_refused(function: str) -> None:
    job = hostile(lambda job: job.graph.nodes.pop())
    kind = next(node.call.kind for node in job.graph.nodes if node.HasField("call"))
    node = 0
    for _ in range(5000):
        call = Call(kind=kind, target=function, args=[Value(node=node), Value(node=node)])
        job.graph.nodes.append(Node(call=call))
        node = len(job.graph.nodes) - 1
    job.graph.nodes.add().output.values.add(node=node)
    with pytest.raises((InvalidRequest, GraphRejected)):
        decode_job(job, blobs={})


def test_a_size_that_turned_out_to_be_one_number_is_said_as_a_fixed_one() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] == 3 else x

    (tensor,) = (
        given.tensor for given in dynamic(model, torch.ones(8, 3)).encode().job.inputs if given.HasField("tensor")
    )
    assert tensor.shape[0].HasField("expression")
    assert tensor.shape[1].size == 3


def test_what_was_computed_with_it_before_that_is_computed() -> None:
    def model(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        shifted = table[:, width + 1 : 2 * width**2]
        return shifted * 2 if width == 3 else shifted

    # Dynamo leaves what it noted while the size was a symbol.
    captured = dynamic(model, torch.ones(8, 3), torch.arange(30.0).reshape(2, 15))
    decoded = decode_job(captured.encode().job, blobs={})
    (output,) = decoded.graph_module.graph.output_node().args[0]
    assert output.meta["example_value"].shape == (2, 11)


def test_a_number_that_the_pod_has_guarded_is_none_of_which_a_compiler_assumes_something() -> None:
    """As of the steps that an optimizer has counted, to which it raises its momenta."""

    def decayed(x: torch.Tensor, steps: int) -> tuple[torch.Tensor, int]:
        return x * math.pow(0.5, steps) + steps, steps + 1

    x = torch.rand(4, 3)
    captured = capture(decayed, x, 3, dynamic=True)
    assert captured.graph_module.graph.find_nodes(op="call_function", target=math.pow)
    decoded = decode_job(captured.encode().job, blobs={})
    with tracing(TracingContext(decoded.fake_mode)):
        aot_module_simplified(decoded.graph_module, decoded.inputs, fw_compiler=lambda graph, _: graph)
    assert sum(type(each) is int for each in decoded.inputs) == 1
    assert decoded.symbolic.guards() == []
    given = [x if isinstance(each, torch.Tensor) else int(each) for each in captured.example_inputs]
    result, *_ = (each for each in decoded.graph_module(*given) if isinstance(each, torch.Tensor))
    torch.testing.assert_close(result, decayed(x, 3)[0])


@pytest.mark.parametrize(
    ("function", "power"), [("operator.pow", 2**40), ("operator.lshift", 2**40), ("operator.pow", 65)]
)
def test_numbers_that_take_memory_are_not_computed(function: str, power: int) -> None:
    job = capture(lambda x: x * 2, torch.ones(3)).encode().job
    kind = TargetKind.TARGET_KIND_PYTHON_FUNCTION
    call = Call(kind=kind, target=function, args=[Value(integer=2), Value(integer=power)])
    job.graph.nodes.insert(1, Node(call=call))
    with pytest.raises(InvalidRequest, match="on large numbers"):
        decode_job(job, blobs={})


class Restarting:
    """A backend that does with floats as the farm's does."""

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with fixing_floats(graph_module):
            self.graphs.append(CapturedGraph(graph_module=graph_module, example_inputs=example_inputs))
        forward: Callable[..., Any] = graph_module.forward
        return forward


@pytest.fixture
def restarting() -> Restarting:
    torch.compiler.reset()
    return Restarting()


def test_floats_of_a_dynamic_model_become_constants(restarting: Restarting) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LayerNorm(6)).eval()
    compiled = torch.compile(model, backend=restarting, dynamic=True)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(compiled(x), model(x))
    (graph,) = restarting.graphs
    job = graph.encode().job
    assert len(job.symbols) > 0
    # Parameters, buffers and the input; no tensor without dimensions that stands for eps or momentum.
    assert all(given.tensor.shape for given in job.inputs if given.HasField("tensor"))
    decode_job(job, blobs={})


def test_a_float_that_differs_from_call_to_call_is_an_input(restarting: Restarting) -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return (x * factor + factor * 2).clamp(max=factor)

    compiled = torch.compile(scaled, backend=restarting, dynamic=True)
    x = torch.linspace(-2, 2, 5)
    for factor in (1.5, 2.5, 1.5, 3.5):
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor))
    _, second = restarting.graphs
    job = second.encode().job
    # What it is now is not part of the request, and so decides neither key nor program.
    assert "2.5" not in str(job)
    decoded = decode_job(job, blobs={})
    for factor in (2.5, -7.25, 0.0, float("inf")):
        given = {0: torch.tensor(factor, dtype=torch.float64), 1: x}
        (result,) = decoded.graph_module(*(given[len(each.tensor.shape)] for each in job.inputs))
        torch.testing.assert_close(result, scaled(x, factor), equal_nan=True)


def test_without_dynamic_a_float_is_an_input_once_it_differs(restarting: Restarting) -> None:
    compiled = torch.compile(lambda x, factor: x * factor, backend=restarting)
    x = torch.ones(3)
    for factor in (1.5, 2.5, 3.5, 4.5):
        torch.testing.assert_close(compiled(x, factor), x * factor)
    assert [len(graph.encode().job.inputs) for graph in restarting.graphs] == [1, 2]


def second_graph(restarting: Restarting, function: Callable[..., Any], x: object) -> CapturedGraph:
    """That in which a float is an input."""
    compiled = torch.compile(function, backend=restarting)
    for number in (1.5, 2.5):
        compiled(x, number)
    _, second = restarting.graphs
    return second


def test_a_float_that_decides_something_stays_here(restarting: Restarting) -> None:
    graph = second_graph(restarting, lambda x, number: torch.layer_norm(x, (3,), eps=number), torch.ones(3))
    with pytest.raises(Bypass, match="decides something: node") as caught:
        graph.encode()
    assert caught.value.reason == "dynamic_float"


class Encoding(Restarting):
    """One that encodes each graph while Dynamo traces, as the farm's does."""

    def __call__(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with fixing_deciding_floats(graph_module):
            CapturedGraph(graph_module=graph_module, example_inputs=example_inputs).encode()
        return super().__call__(graph_module, example_inputs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rate, number: torch.layer_norm(x * rate, (3,), eps=number),
        lambda x, rate, number: torch.dropout(x * rate, number, True) * 0 + number,
        lambda x, rate, number: x * rate + int(number * 10),
        lambda x, rate, number: x * min(rate, number) + round(number * 4),
    ],
)
def test_each_value_of_a_float_that_decides_something_is_a_constant(function: Callable[..., Any]) -> None:
    """And no other float is: a rate that differs at each call would have a program for each."""
    torch.compiler.reset()
    encoding, x = Encoding(), torch.rand(2, 3)
    compiled = torch.compile(function, backend=encoding)
    for rate, number in ((1.5, 0.25), (2.5, 0.5), (3.5, 0.75), (4.5, 0.5), (5.5, 0.75)):
        torch.testing.assert_close(compiled(x, rate, number), function(x, rate, number))
    assert [len(graph.encode().job.inputs) for graph in encoding.graphs] == [1, 2, 2]


def test_an_integer_that_is_computed_of_a_float_stays_here(restarting: Restarting) -> None:
    """Integers were added as 32-bit floats."""
    graph = second_graph(restarting, lambda x, number: x + int(number), torch.ones(3))
    with pytest.raises(Bypass, match="may round") as caught:
        graph.encode()
    assert caught.value.reason == "dynamic_float"


@pytest.mark.parametrize("number", [2.5, -0.0, 1e-9, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "compute",
    [
        lambda number: number - number,
        lambda number: number * 0,
        lambda number: (number - 1) * 0.1,
        lambda number: (number * 1e300) * 1e300,
        lambda number: number * (number + 1) - number,
        lambda number: max(number, 0.1) + min(2, number * number),
        lambda number: min(number, 3.0) * (1 + number**2) / 7,
        lambda number: (number - 3) * math.cos(0.5 * min(number, 9.0)),
    ],
)
def test_a_float_that_others_are_computed_of_is_rounded_as_here(
    restarting: Restarting, compute: Callable[[float], float], number: float
) -> None:
    """What symbols are simplified to is another number: 0 for inf - inf."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    job = second_graph(restarting, lambda x, number: x * compute(number) + number, x).encode().job
    given = {0: torch.tensor(number, dtype=torch.float64), 1: x}
    (result,) = decode_job(job, blobs={}).graph_module(*(given[len(each.tensor.shape)] for each in job.inputs))
    torch.testing.assert_close(result, x * compute(number) + number, rtol=1e-15, atol=0, equal_nan=True)


def test_a_number_that_is_computed_with_is_the_one_that_was_read(restarting: Restarting) -> None:
    """The tensor that it was read from is written to before."""

    def counted(steps: torch.Tensor, number: float) -> torch.Tensor:
        before = steps.item()
        steps.add_(1)
        return steps * min(number, before)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        graph = second_graph(restarting, counted, torch.tensor(3.0, dtype=torch.float64))
    placeholders = graph.graph_module.graph.find_nodes(op="placeholder")
    given = [torch.tensor(3.0 if "steps" in node.name else 9.0, dtype=torch.float64) for node in placeholders]
    (result,) = decode_job(graph.encode().job, blobs={}).graph_module(*given)
    assert result == 12


@pytest.mark.parametrize("number", [2.5, -0.0, 1e-9, 16777217.0, float("inf"), float("nan")])
def test_a_float_in_a_product_and_a_sum_is_computed_with_as_here(restarting: Restarting, number: float) -> None:
    def decayed(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x * (1 - rate * 0.01) + -rate

    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    job = second_graph(restarting, decayed, x).encode().job
    given = {0: torch.tensor(number, dtype=torch.float64), 1: x}
    (result,) = decode_job(job, blobs={}).graph_module(*(given[len(each.tensor.shape)] for each in job.inputs))
    assert torch.equal(result.nan_to_num(), decayed(x, number).nan_to_num())


@pytest.mark.parametrize("number", [0.9, 1.0, 0.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_is_raised_to_powers_and_weighs_as_a_tensor(
    restarting: Restarting, number: float, dtype: torch.dtype
) -> None:
    """As momenta are that a scheduler changes; and weighs by them."""

    def corrected(powers: Sequence[torch.Tensor], beta: float) -> list[torch.Tensor]:
        raised = torch._foreach_pow(beta, powers)
        torch._foreach_sub_(raised, 1)
        mixed = [each.clone() for each in powers]
        torch._foreach_lerp_(mixed, [each * 3 for each in powers], 1 - beta)
        between = [powers[0].clone().lerp_(powers[0] * 7, 1 - beta), torch.lerp(powers[1], powers[0], beta)]
        return [*raised, *mixed, *between, beta ** powers[1] * (1 - beta), powers[1] ** beta, powers[0].pow(1 - beta)]

    powers = [torch.tensor(3.0, dtype=dtype), torch.tensor([2.0, 5.0], dtype=dtype)]
    graph = second_graph(restarting, corrected, powers)
    job, rest = graph.encode().job, iter(powers)
    given = [
        torch.tensor(number, dtype=torch.float64) if any(map(is_dynamic_float, node.users)) else next(rest)
        for node in graph.graph_module.graph.find_nodes(op="placeholder")
    ]
    results = decode_job(job, blobs={}).graph_module(*given)
    for found, expected in zip(results, corrected(powers, number), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_a_float_that_a_cuda_graph_would_hold_stays_here(restarting: Restarting) -> None:
    with faking():
        graph = second_graph(restarting, lambda x, number: x * number, torch.ones(3, device="cuda"))
    assert len(graph.encode().job.inputs) == 2
    with pytest.raises(Bypass, match="CUDA graphs are asked for") as caught:
        graph.encode(options={"triton.cudagraphs": True})
    assert caught.value.reason == "dynamic_float"


def test_floats_of_frames_before_a_reset_are_forgotten(restarting: Restarting) -> None:
    """Dynamo numbers frames from 0 again, and the sources of their floats are called alike."""

    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    for factor in (1.5, 2.5):
        torch.compiler.reset()
        torch.compile(scaled, backend=restarting, dynamic=True)(torch.ones(3), factor)
    for graph in restarting.graphs:
        graph.encode()


def test_floats_are_fixed_for_one_frame_only(restarting: Restarting) -> None:
    def first(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def second(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + factor

    x = torch.ones(3)
    torch.compile(first, backend=restarting, dynamic=True)(x, 1.5)
    # Dynamo names both floats alike, and would not ask again.
    seen: list[int] = []

    def look(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(len([given for given in example_inputs if isinstance(given, torch.Tensor)]))
        return restarting(graph_module, example_inputs)

    torch.compile(second, backend=look, dynamic=True)(x, 2.5)
    assert seen == [2, 1]
