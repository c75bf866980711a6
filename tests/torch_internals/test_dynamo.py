"""Canaries of torch_internals/dynamo.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from compilefarm.torch_internals import dynamo
from compilefarm.torch_internals.dynamo import (
    STATIC_MARK,
    CompileContext,
    IndexingByTensors,
    RestartWithConstants,
    is_of_dynamo,
    is_static_address,
)
from compilefarm.torch_internals.fake_tensors import FakeTensorMode


def compile_with(backend: Callable[..., Any], model: Callable[..., Any], *inputs: object) -> Any:
    torch.compiler.reset()
    return torch.compile(model, backend=backend, dynamic=True)(*inputs)


def test_a_backend_knows_that_dynamo_is_tracing() -> None:
    seen = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compiling = dynamo.current_compile()
        assert isinstance(compiling, CompileContext)
        assert compiling.compile_id is not None
        seen.append((compiling.compile_id.frame_compile_id, dynamo.is_tracing(), type(dynamo.tracing_mode())))
        return graph_module.forward

    compile_with(backend, lambda x: x + 1, torch.ones(2))
    assert seen == [(0, True, FakeTensorMode)]
    assert (dynamo.is_tracing(), dynamo.tracing_mode(), dynamo.current_compile()) == (False, None, None)


def test_a_float_is_made_constant_by_another_trace() -> None:
    class Scaled(torch.nn.Module):
        eps = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.eps

    inputs = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        memos = [getattr(node.meta["example_value"], "item_memo", None) for node in placeholders]
        inputs.append(len(placeholders))
        floats = [memo for memo in memos if isinstance(memo, torch.SymFloat)]
        for memo in floats:
            dynamo.make_float_constant(str(memo.node.expr))
        if floats:
            raise RestartWithConstants
        dynamo.forget_constant_floats()
        return graph_module.forward

    assert compile_with(backend, Scaled(), torch.ones(3)).tolist() == [0.5] * 3
    assert inputs[1] < inputs[0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_whether_numbers_are_expected_to_stay_what_they_are(dynamic: bool | None) -> None:
    seen: list[bool] = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        seen.append(dynamo.expects_static())
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(lambda x: x + 1, backend=backend, dynamic=dynamic)(torch.ones(3))
    assert seen == [dynamic is None]


def test_tensors_that_stay_where_they_are() -> None:
    # torch/_dynamo/decorators.py: mark_static_address, which Dynamo calls for the state of an optimizer.
    tensor = torch.ones(2)
    assert not is_static_address(tensor)
    torch._dynamo.mark_static_address(tensor)
    assert is_static_address(tensor)
    assert hasattr(tensor, STATIC_MARK)


def test_graphs_of_compiled_autograd_take_a_list() -> None:
    seen = []

    def backend(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append([dynamo.is_container(given) for given in inputs])
        return graph_module.forward

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: x.sin().sum().backward(), backend=backend)(torch.ones(2, requires_grad=True))
    assert [any(each) for each in seen] == [False, True]


def test_tensors_are_indices_within_flexible_attention() -> None:
    table, place = torch.arange(3.0), torch.tensor(2)
    with IndexingByTensors(), FakeTensorMode(allow_non_fake_inputs=True):
        assert table[place].shape == ()


def test_dynamo_wraps_functions_of_autograd_that_it_leaves_in_graphs() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    torch.compiler.allow_in_graph(Doubled)
    called = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        called.extend(node.target for node in graph_module.graph.nodes if node.op == "call_function")
        return graph_module.forward

    compile_with(backend, lambda x: Doubled.apply(x), torch.ones(2, requires_grad=True))
    assert list(map(is_of_dynamo, called)) == [True]
    assert not is_of_dynamo(torch.nn.functional.relu)
