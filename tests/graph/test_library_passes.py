"""Passes that a library gives Inductor for the whole process: most graphs are served as if they were not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.library_passes import passes_without_effect
from compilefarm.graph.testing import capture
from compilefarm.torch_internals.settings import INDUCTOR
from compilefarm.v1.job_pb2 import Job

_MODULE = "torchao.quantization.pt2e.inductor_passes.x86"


class Lift:
    """Stands in for torchao's."""

    __module__ = _MODULE

    def __call__(self, graph: Graph) -> None:
        """Leaves it alone."""


@pytest.fixture(params=[Lift(), lambda graph: None], ids=["object", "function"])
def torchao(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """What importing torchao's quantizer for x86 does; the pass is an object or a function, by its release."""
    module: Any = ModuleType(_MODULE)
    module.quant_lift_up = request.param
    monkeypatch.setitem(sys.modules, _MODULE, module)
    with INDUCTOR.patch(pre_grad_custom_pass=request.param):
        yield


def _job() -> Job:
    return capture(lambda x: torch.nn.functional.gelu(x @ x).sum(), torch.ones(4, 4)).encode().job


@pytest.fixture
def quantizing() -> Iterator[GraphModule]:
    """A graph that calls an operator of another library than torch."""
    library = torch.library.Library("quantized_for_passes", "DEF")
    library.define("quantize(Tensor x, float scale) -> Tensor")
    graph = Graph()
    graph.output((graph.call_function(torch.ops.quantized_for_passes.quantize, (graph.placeholder("x"), 0.1)),))
    yield GraphModule({}, graph)
    library._destroy()


def test_a_graph_that_is_not_quantized_is_sent_as_ever(torchao: None) -> None:
    with INDUCTOR.patch(pre_grad_custom_pass=None):
        expected = _job()
    assert _job() == expected


def test_a_pass_of_anybody_else_is_none_of_these(torchao: None) -> None:
    with INDUCTOR.patch(pre_grad_custom_pass=lambda graph: None), pytest.raises(Bypass, match="pre_grad_custom_pass"):
        _job()


def test_a_pass_counts_where_it_may_have_something_to_move(torchao: None, quantizing: GraphModule) -> None:
    values = INDUCTOR.get_config_copy()
    outer = Graph()
    outer.output((outer.get_attr("inner"),))
    plain = GraphModule({}, Graph())
    plain.graph.output(())
    assert passes_without_effect(values, plain) == {"pre_grad_custom_pass"}
    assert passes_without_effect(values, quantizing) == set()
    assert passes_without_effect(values, GraphModule({"inner": quantizing}, outer)) == set()
