"""Passes that change graphs before their gradients are traced run in the pod, and what they leave is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.graph.custom_passes import with_custom_passes
from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.torch_internals.settings import INDUCTOR

from .test_plain_graphs import Encoding, linear, scaled


def _doubled_sine(graph: Graph) -> None:
    """Puts twice the sine into the place of a cosine, in an order that has to be mended."""
    for node in graph.find_nodes(op="call_function", target=torch.cos):
        with graph.inserting_before(node):
            twice = graph.call_function(torch.mul, (node, 2))
        node.target = torch.sin
        node.replace_all_uses_with(twice, delete_user_cb=lambda user, twice=twice: user is not twice)


class _SineOfHalf:
    """A pass that is an object, as torch wants them."""

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.sin):
            with graph.inserting_before(node):
                half = graph.call_function(torch.div, (node.args[0], 2))
            node.args = (half,)

    def uuid(self) -> str:
        return "sine of half"


X = torch.linspace(-1, 1, 4)


@pytest.fixture
def cosine() -> CapturedGraph:
    return capture(lambda x: torch.cos(x) + 1, X)


def _sent(graph: CapturedGraph, **options: Any) -> torch.Tensor:
    """What the graph computes that is sent."""
    encoded = graph.encode(options=options)
    assert not encoded.job.options.inductor
    (result,) = decode_job(encoded.job, blobs=encoded.blobs).graph_module(X)
    assert torch.equal(graph.graph_module(X)[0], X.cos() + 1), "the graph of the pod is as it was"
    assert isinstance(result, torch.Tensor)
    return result


def test_what_a_pass_leaves_is_sent(cosine: CapturedGraph) -> None:
    torch.testing.assert_close(_sent(cosine, pre_grad_custom_pass=_doubled_sine), 2 * X.sin() + 1)
    with INDUCTOR.patch(pre_grad_custom_pass=_doubled_sine):
        torch.testing.assert_close(_sent(cosine), 2 * X.sin() + 1)


def test_several_passes_run_one_after_another(cosine: CapturedGraph) -> None:
    given = _sent(cosine, pre_grad_custom_pass=[_doubled_sine, _SineOfHalf()])
    torch.testing.assert_close(given, 2 * (X / 2).sin() + 1)


def test_without_a_pass_the_graph_is_no_other_one(cosine: CapturedGraph) -> None:
    assert with_custom_passes(cosine.graph_module, {}) is cosine.graph_module


def test_a_pass_that_changes_nothing_changes_no_request(cosine: CapturedGraph) -> None:
    with INDUCTOR.patch(pre_grad_custom_pass=lambda graph: None):
        given = cosine.encode().job
    assert given == cosine.encode().job


def test_a_pass_runs_before_subclasses_are_taken_apart() -> None:
    layer, encoding = linear(scaled(4, 8)), Encoding()
    model = torch.nn.Sequential(layer, torch.nn.Tanh())

    def without_tanh(graph: Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.tanh:
                node.replace_all_uses_with(node.args[0])

    with torch.no_grad(), INDUCTOR.patch(pre_grad_custom_pass=without_tanh):
        x = torch.rand(2, 8)
        result = torch.compile(model, backend=encoding.backend)(x)
        torch.testing.assert_close(result, layer(x))
    assert encoding.roles == ["inference"]


def test_what_a_pass_raises_is_told(cosine: CapturedGraph) -> None:
    def failing(_: Graph) -> None:
        raise ValueError("no such node")

    with torch.no_grad(), pytest.raises(ValueError, match="no such node"):
        TorchRuntime().encode(cosine.graph_module, [X], options={"pre_grad_custom_pass": failing})
