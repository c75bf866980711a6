"""Canaries of torch_internals/graph_arguments.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from compilefarm.torch_internals.graph_arguments import flattening_of, nesting_of, nests_arguments


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, parts: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"sums": [x + parts["a"], x - parts["b"]], "none": None}


def test_arguments_of_an_exported_graph_are_taken_by_name_in_its_own_order() -> None:
    x, a, b = (torch.full((2,), float(number)) for number in range(3))
    exported = torch.export.export(Nested(), (x,), {"parts": {"a": a, "b": b}}).module()
    take = flattening_of(exported)
    assert [value.item() for value in (each[0] for each in take(x, parts={"b": b, "a": a}))] == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="others"):
        take(x, others={})
    with pytest.raises(TypeError, match="indices"):
        take(x, parts=[a, b])
    assert nests_arguments(exported)
    assert nesting_of(exported)((a, b, None)) == {"sums": [a, b], "none": None}


def test_arguments_of_a_traced_graph_have_their_names_and_defaults() -> None:
    traced = fx.symbolic_trace(lambda x, y=2: (x * y,))
    assert not nests_arguments(traced)
    assert tuple(flattening_of(traced)(y=3, x=1)) == (1, 3)
    assert tuple(flattening_of(traced)(1)) == (1, 2)
    assert nesting_of(traced)((4,)) == (4,)


def test_graphs_of_a_compiler_take_values_one_by_one() -> None:
    traced = fx.symbolic_trace(lambda x: (x + 1,))
    traced.graph.set_codegen(fx.graph._BoxedCodeGen())
    traced.recompile()
    assert flattening_of(traced)(1) == (1,)
