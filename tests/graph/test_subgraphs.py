"""Higher-order operators with their subgraphs, and modes that a graph enters and leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph import targets
from compilefarm.graph.decode import MAX_SUBGRAPH_DEPTH, GraphRejected, decode_job
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.torch_internals import traced_functions
from compilefarm.v1.graph_pb2 import Graph
from compilefarm.v1.job_pb2 import Job


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 3


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def _in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def _with_math_attention(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def _partly_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.sum()
    return x * scale


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y, scale = x.sin(), x.detach().sum()
    y.register_hook(lambda gradient: gradient * scale)
    return y.cos()


_steps_of_loop: Any = torch.ops.higher_order.while_loop_stack_output
PROGRAMS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y + 1, (x,)), torch.ones(3)),
    "cond within cond": (
        lambda x: torch.cond(
            x.sum() > 0,
            lambda y: torch.cond(y.max() > 2, lambda z: z - 1, lambda z: z * 2, (y,)),
            lambda y: y + 1,
            (x,),
        ),
        torch.ones(3),
    ),
    "while_loop": (
        lambda x: while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)),
        torch.ones(3),
    ),
    "steps of a loop": (
        lambda x: _steps_of_loop(lambda i, _: i < 4, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x), ()),
        torch.ones(3),
    ),
    "scan": (lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(3), x), torch.rand(4, 3)),
    "map": (lambda x: map_rows(lambda row, y: row.sin() + y, x, torch.ones(3)), torch.rand(4, 3)),
    "checkpoint": (
        lambda x: checkpoint(lambda y: torch.relu(y @ y), x, use_reentrant=False),
        torch.rand(3, 3, requires_grad=True),
    ),
    "autograd function": (lambda x: Doubled.apply(x).sin(), torch.rand(3, requires_grad=True)),
    "nested region": (lambda x: _region(_region(x)), torch.rand(3)),
    "vmap": (lambda x: torch.vmap(lambda row: row.sum() * row)(x), torch.rand(4, 3)),
    "flex attention": (
        lambda x: flex_attention(x, x + 1, x + 2, score_mod=lambda score, b, h, i, j: score + (i - j)),
        torch.rand(1, 2, 128, 16),
    ),
    "autocast": (_in_autocast, torch.rand(3, 3)),
    "attention backend": (_with_math_attention, torch.rand(1, 2, 8, 4)),
    "no_grad": (_partly_without_gradients, torch.rand(3, requires_grad=True)),
}
if "register_hook" in targets.higher_order_operators():  # torch 2.11 has none
    PROGRAMS["hook"] = (_hooked, torch.rand(3, requires_grad=True))
_switch: Any = getattr(torch._higher_order_ops, "switch", None)
if _switch is not None:  # torch 2.11 has none
    PROGRAMS["switch"] = (
        lambda x: _switch(x.sum().to(torch.int64), (torch.sin, torch.cos, lambda y: y + 1), (x,)),
        torch.full((3,), 0.5, requires_grad=True),
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_decoded_graph_computes_the_same(name: str) -> None:
    program, x = PROGRAMS[name]
    captured = capture(program, x, fullgraph=True)
    encoded = captured.encode()
    graph = decode_job(encoded.job, blobs=encoded.blobs).graph_module
    ours, theirs = graph(x), captured.graph_module(x)
    torch.testing.assert_close(list(ours), list(theirs), rtol=0, atol=0)
    if x.requires_grad:
        gradients = [torch.autograd.grad(result[0].sum(), x)[0] for result in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
    again = CapturedGraph(graph_module=graph, example_inputs=captured.example_inputs).encode()
    assert again.job.graph == encoded.job.graph


def test_bindings_that_a_library_calls_are_what_vmap_calls() -> None:
    """tensordict batches what it holds by itself."""
    program, x = PROGRAMS["vmap"]
    captured = capture(program, x, fullgraph=True)
    expected = captured.encode().job
    load = traced_functions.load_function
    bindings = {load(twin): load(binding) for binding, twin in traced_functions.TWINS.items()}
    for node in captured.graph_module.graph.nodes:
        if node.target in bindings:
            node.target = bindings.pop(node.target)
    assert not bindings
    assert captured.encode().job == expected


def test_what_a_subgraph_computes_is_in_the_key() -> None:
    def key(scale: float) -> str:
        captured = capture(lambda x: torch.cond(x.sum() > 0, lambda y: y * scale, lambda y: y + 1, (x,)), torch.ones(3))
        return key_of(captured.encode().job).text

    assert key(2.0) == key(2.0)
    assert key(2.0) != key(3.0)


def _job(name: str) -> Job:
    program, x = PROGRAMS[name]
    return capture(program, x, fullgraph=True).encode().job


def _calls(graph: Graph, target: str) -> list[Any]:
    return [node.call for node in graph.nodes if node.HasField("call") and node.call.target.endswith(target)]


def _nest(job: Job, levels: int) -> None:
    graph = job.graph
    for _ in range(levels):
        graph = graph.subgraphs.add()
        graph.nodes.add().output.result.none.SetInParent()


def _drop(job: Job, target: str) -> None:
    """Replaces a call by one that does nothing of consequence."""
    (call,) = _calls(job.graph, target)
    call.CopyFrom(_calls(job.graph, "matmul")[0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cond", lambda job: job.graph.ClearField("subgraphs")),
        ("cond", lambda job: job.graph.subgraphs[0].ClearField("nodes")),
        ("cond", lambda job: job.graph.subgraphs[0].nodes.pop()),
        ("cond", lambda job: job.graph.subgraphs[0].nodes[-1].output.ClearField("result")),
        ("cond", lambda job: job.graph.nodes[-1].output.result.none.SetInParent()),
        ("cond", lambda job: job.graph.subgraphs[0].nodes.insert(0, job.graph.nodes[1])),
        ("cond", lambda job: _nest(job, MAX_SUBGRAPH_DEPTH + 1)),
        ("cond", lambda job: setattr(_calls(job.graph, "cond")[0], "target", "print")),
        ("cond", lambda job: setattr(_calls(job.graph, "cond")[0], "target", "call_torchbind")),
        ("autocast", lambda job: _drop(job, "_exit_autocast")),
        ("autocast", lambda job: _drop(job, "_enter_autocast")),
        ("autocast", lambda job: setattr(_calls(job.graph, "_enter_autocast")[0].args[0], "node", 0)),
        ("attention backend", lambda job: setattr(_calls(job.graph, "_from_string")[0].args[0], "text", "__class__")),
        ("attention backend", lambda job: _calls(job.graph, "_from_string")[0].args[0].list.SetInParent()),
        ("vmap", lambda job: setattr(_calls(job.graph, "_decrement_nesting")[0], "target", "torch.relu")),
    ],
)
def test_what_contradicts_itself_is_refused(name: str, change: Callable[[Job], object]) -> None:
    job = _job(name)
    change(job)
    before = torch.is_autocast_enabled("cpu")
    with pytest.raises((InvalidRequest, GraphRejected)):
        decode_job(job, blobs={})
    assert torch.is_autocast_enabled("cpu") == before


def test_modes_are_left_when_a_graph_is_cut_short() -> None:
    job = _job("autocast")
    call = _calls(job.graph, "matmul")[0]
    call.args.add().integer = 5
    with pytest.raises(GraphRejected):
        decode_job(job, blobs={})
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
