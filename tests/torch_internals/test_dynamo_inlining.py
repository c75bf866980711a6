"""Canaries of torch_internals/dynamo_inlining.py."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.dynamo_inlining import NotConstant, watching_inlined_calls


def _inner(x: torch.Tensor, word: str) -> torch.Tensor:
    return x + len(word)


def test_inlined_functions_are_seen_with_what_they_are_called_with() -> None:
    seen: list[Any] = []
    torch.compiler.reset()
    with watching_inlined_calls(lambda code, arguments: seen.append((code, arguments))):
        torch.compile(lambda x: _inner(x, "ab") + _inner(x, "abc"), backend="eager")(torch.ones(2))
    assert seen == [(_inner.__code__, [NotConstant, "ab"]), (_inner.__code__, [NotConstant, "abc"])]


def test_a_function_that_computes_the_grid_of_a_kernel_is_traced_into(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from tests.graph.triton_programs import tuned

    # Dynamo looks for a GPU before it takes anything for a kernel, and for nothing else of it.
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_, **__: True)
    seen: list[Any] = []
    torch.compiler.reset()
    with watching_inlined_calls(lambda code, arguments: seen.append((code.co_name, arguments))):
        torch.compile(tuned, backend=lambda *_: lambda *inputs: inputs)(torch.ones(300))
    assert ("<lambda>", [NotConstant]) in seen


def _second_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y - x


def _inputs_of_graph(*, watched: bool) -> list[str]:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph_module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    torch.compiler.reset()
    with watching_inlined_calls(lambda *_: None) if watched else contextlib.nullcontext():
        torch.compile(lambda x, y: _second_first(x, y), backend=backend)(torch.ones(2), torch.ones(2, 1))
    (graph_module,) = graphs
    return [node.target for node in graph_module.graph.find_nodes(op="placeholder")]


def test_a_watched_trace_makes_the_graph_that_any_other_makes() -> None:
    assert _inputs_of_graph(watched=True) == _inputs_of_graph(watched=False)
