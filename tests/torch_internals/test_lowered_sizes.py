"""Canaries of torch_internals/lowered_sizes.py: a graph that Inductor makes other sizes of than it was checked with."""

from __future__ import annotations

import importlib
import inspect

import pytest

from compilefarm.torch_internals.lowered_sizes import watching_lowered_sizes
from tests.forked_pods import ForkedPods

# In a process of its own: the first compile registers the patterns, as torch has them. Nothing is generated or run.
_DIFFERENCES = """
from unittest import mock
import torch, torch._inductor.graph
from torch._inductor import compile_fx
from torch.nn.functional import linear
from compilefarm.torch_internals.lowered_sizes import watching_lowered_sizes
from compilefarm.worker.operator_guard import guarding_operators

class Lowered(Exception):
    pass

def stop(*_args, **_kwargs):
    raise Lowered

graph = torch._inductor.graph.GraphLowering
graph.codegen = stop

def reshaped(x, weight, scales):
    return (x.reshape(10, 64) @ weight.to(x.dtype).t()).reshape(10, 1, 48) * scales

def turned(x, weight, scales):
    return (x.flatten(0, 1) @ weight.to(x.dtype).t()).reshape(x.shape[1], x.shape[0], 48) * scales

def behind(x, weight, scales):
    return reshaped(x, weight, scales).view(10, 48).sin()[7:]

def layer(x, weight, scales):
    return linear(x, weight.to(x.dtype)) * scales

def convolved(x, weight, scales):
    return torch.nn.functional.conv1d(x.float(), torch.ones(7, 5, 3)).softmax(-1)[..., ::2].argmax(1)

def inverted(x, weight, scales):
    return torch.linalg.inv(x.float() @ x.float().mT)

def asserted(x, weight, scales):
    torch._assert_async((x.float() > -1).all(), "all of it is positive")
    return x.float().sqrt()

def sorted(x, weight, scales):
    return torch.sort(x.sin())

def ranked(x, weight, scales):
    return torch.sort(x.sin())[0]

def places_of_another_size(graph):
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sort.default):
        node.meta["val"] = (node.meta["val"][0], torch.zeros(0))

def sine_of_unknown_size(graph):
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        with graph.graph.inserting_before(node):
            node.replace_all_uses_with(graph.graph.call_function(node.target, node.args))
        graph.graph.erase_node(node)

def places_of_unknown_size(graph):
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sort.default):
        node.meta["val"] = node.meta["val"][:1]

def tensors_of_unknown_size(graph):
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        node.meta["val"] = 5

def changing_at_last(change):
    # Behind all that Inductor does to a graph, and brings what is said of it up to date.
    passes = compile_fx._recursive_post_grad_passes

    def change_graph(graph, *args, **kwargs):
        passes(graph, *args, **kwargs)
        change(graph)

    return mock.patch.object(compile_fx, "_recursive_post_grad_passes", change_graph)

def compile(function, *, symbolic):
    torch._dynamo.reset()
    given = torch.zeros(2, 5, 64, dtype=torch.bfloat16)
    for dimension in (0, 1) if symbolic else ():
        torch._dynamo.decorators.mark_unbacked(given, dimension)
    of_weights = torch.zeros(48, 64, dtype=torch.int8), torch.zeros(48, dtype=torch.bfloat16)
    try:
        torch.compile(function, fullgraph=True)(given, *of_weights)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

for function, symbolic in (
    (reshaped, False), (turned, True), (behind, False), (layer, False), (layer, True), (convolved, False),
    (inverted, False), (asserted, False), (sorted, False),
):
    found = []
    with watching_lowered_sizes(lambda *difference: found.append(difference)):
        compile(function, symbolic=symbolic)
    print(f"{function.__name__} {symbolic}: {found[0] if found else None}")

for change, function in (
    (sine_of_unknown_size, sorted), (places_of_unknown_size, sorted), (tensors_of_unknown_size, sorted),
    (places_of_another_size, ranked),
):
    found = []
    with changing_at_last(change), watching_lowered_sizes(lambda *difference: found.append(difference)):
        compile(function, symbolic=False)
    print(f"{change.__name__}: {found[0] if found else None}")

try:
    with guarding_operators(calls_views=False):
        compile(reshaped, symbolic=False)
except Exception as error:
    print(f"guarded: {type(error).__name__}, {error}")
"""


@pytest.fixture(scope="module")
def differences(forks: ForkedPods) -> dict[str, str]:
    told = forks.execute(_DIFFERENCES)
    assert told.returncode == 0, told.stderr
    return dict(line.split(": ", 1) for line in told.stdout.splitlines())


def test_what_is_made_with_other_sizes_is_told(differences: dict[str, str]) -> None:
    assert differences["reshaped False"].endswith("'torch.bfloat16[10, 1, 48]', 'torch.bfloat16[2, 5, 48]')")
    assert differences["behind False"].endswith("'torch.bfloat16[10, 1, 48]', 'torch.bfloat16[2, 5, 48]')")


def test_sizes_that_need_not_be_equal_are_told(differences: dict[str, str]) -> None:
    assert differences["turned True"].endswith("'torch.bfloat16[u1, u0, 48]', 'torch.bfloat16[u0, u1, 48]')")


@pytest.mark.parametrize(
    ("case", "said"),
    [("sine_of_unknown_size", "nothing"), ("places_of_unknown_size", "nothing"), ("tensors_of_unknown_size", "int")],
)
def test_what_is_made_and_not_said_is_told(differences: dict[str, str], case: str, said: str) -> None:
    assert f", '{said}', 'torch." in differences[case]


@pytest.mark.parametrize(
    "case",
    [
        *("layer False", "layer True", "convolved False", "inverted False", "asserted False", "sorted False"),
        "places_of_another_size",
    ],
)
def test_what_is_made_as_it_was_checked_is_not(differences: dict[str, str], case: str) -> None:
    assert differences[case] == "None"


def test_a_worker_compiles_none_that_is_made_otherwise(differences: dict[str, str]) -> None:
    assert differences["guarded"] == (
        "InvalidRequest, node woq_int8 is checked as torch.bfloat16[10, 1, 48],"
        " and compiled as torch.bfloat16[2, 5, 48]"
    )


def test_where_graphs_are_changed_and_lowered() -> None:
    compiling = importlib.import_module("torch._inductor.compile_fx")
    lowering = importlib.import_module("torch._inductor.graph").GraphLowering
    assert list(inspect.signature(lowering.run_node).parameters) == ["self", "n"]
    # Subgraphs are changed within it, and lowered by the same method.
    source = inspect.getsource(compiling._recursive_post_grad_passes)
    assert "_recursive_post_grad_passes(subgraph, is_inference)" in source
    assert "run_node" not in vars(importlib.import_module("torch._inductor.graph").SubgraphLowering)
    assert "self.graph_outputs = " in inspect.getsource(lowering.output)
    changed = compiling._recursive_post_grad_passes
    with watching_lowered_sizes(lambda *_: None):
        assert compiling._recursive_post_grad_passes is not changed
    assert compiling._recursive_post_grad_passes is changed
