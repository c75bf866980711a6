"""Constants that a graph makes large: what torch computes of them while the graph is decoded is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.torch_internals.fake_tensors import FakeTensorMode, constants_of
from compilefarm.worker.operator_guard import guarding_operators

# Eight bytes of each would be more than any machine has.
MANY = 2**50
# What makes so many elements, in a graph that has a constant of one.
LARGE: dict[str, Callable[[Graph, Node], Node]] = {
    "repeat": lambda graph, one: graph.call_method("repeat", (one, MANY)),
    "two sizes": lambda graph, one: graph.call_method("repeat", (one, 2**25, 2**25)),
    "new_full": lambda graph, one: graph.call_method("new_full", (one, (MANY,), 2.0)),
    "pad": lambda graph, one: graph.call_function(torch.ops.aten.constant_pad_nd.default, (one, (0, MANY - 1))),
    "linspace": lambda graph, one: graph.call_function(torch.linspace, (graph.call_method("sum", (one,)), 2.0, MANY)),
    "kaiser": lambda graph, one: graph.call_function(torch.signal.windows.kaiser, (MANY,)),
    "a result": lambda graph, one: graph.call_method("repeat", (graph.call_function(torch.add, (one, one)), MANY)),
}


def decode(build: Callable[[Graph, Node], Node]) -> DecodedJob:
    """Decodes a graph that makes something of a constant. It is not captured: Dynamo would compute it."""
    graph = Graph()
    graph.placeholder("x")
    graph.output((build(graph, graph.call_function(torch.tensor, ([1.0],))),))
    graph_module = GraphModule(torch.nn.Module(), graph)
    job = encode_job(graph_module, [torch.ones(1)], options={}, environment=fixed_environment).job
    return decode_job(job, blobs={})


@pytest.mark.parametrize("name", LARGE)
def test_constants_that_become_large_are_not_computed(name: str) -> None:
    (result,) = list(decode(LARGE[name]).graph_module.graph.nodes)[-1].meta["example_value"]
    assert result.numel() == MANY


def _padded(graph: Graph, one: Node) -> Node:
    image = graph.call_method("view", (one, 1, 1, 1, 1, 1))
    rest = (None, [1], [8000], [1], False, [0], 1)
    return graph.call_function(torch.ops.aten.convolution.default, (image, image, *rest))


def _diagonal(graph: Graph, one: Node) -> Node:
    return graph.call_function(torch.diag_embed, (graph.call_method("to", (one, torch.complex128)), 65_000))


def _blocks(graph: Graph, one: Node) -> Node:
    return graph.call_function(torch.block_diag, tuple([graph.call_method("to", (one, torch.complex128))] * 2000))


@pytest.mark.parametrize(
    ("build", "elements"), [(_padded, 16_001**3), (_diagonal, 65_001**2), (_blocks, 2000**2)], ids=["3d", "2d", "many"]
)
def test_numbers_stand_for_several_dimensions(build: Callable[[Graph, Node], Node], elements: int) -> None:
    nodes = list(decode(build).graph_module.graph.nodes)
    (result,) = nodes[-1].meta["example_value"]
    assert result.numel() == elements
    # Of what is large itself torch knows nothing, whatever it has computed.
    assert not constants_of(nodes[-2].args[0].meta["example_value"])


def test_nor_are_they_while_a_graph_is_compiled() -> None:
    with FakeTensorMode(), guarding_operators(calls_views=False):
        assert torch.tensor(1.0).repeat(MANY).numel() == MANY


def test_elements_that_say_how_many_there_are() -> None:
    def build(graph: Graph, one: Node) -> Node:
        return graph.call_function(torch.bincount, (graph.call_function(torch.tensor, ([MANY],)),))

    (result,) = list(decode(build).graph_module.graph.nodes)[-1].meta["example_value"]
    assert isinstance(result.shape[0], torch.SymInt)


def test_what_shares_the_memory_of_a_constant_that_was_forgotten_is_forgotten_with_it() -> None:
    def build(graph: Graph, one: Node) -> Node:
        number = graph.call_function(torch.tensor, ([1],))
        alias = graph.call_method("view", (number, 1))
        graph.call_method("repeat", (alias, MANY))
        graph.call_method("add_", (alias, 1))
        return graph.call_method("expand", (one, graph.call_method("item", (number,))))

    (result,) = list(decode(build).graph_module.graph.nodes)[-1].meta["example_value"]
    assert isinstance(result.shape[0], torch.SymInt)


def test_sizes_that_small_constants_say_stay_known() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.expand((torch.tensor(3) * torch.tensor([2]).repeat(1).sum()).item())

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        decoded = decode_job(capture(model, torch.ones(1)).encode().job, blobs={})
    assert not decoded.depends_on_elements
