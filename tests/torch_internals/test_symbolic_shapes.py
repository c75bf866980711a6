"""Canaries of torch_internals/symbolic_shapes.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from compilefarm.torch_internals import symbolic_shapes
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operator_calls import dispatching_in_python
from compilefarm.torch_internals.symbolic_shapes import (
    CeilToInt,
    CleanDiv,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    Identity,
    IntTrueDiv,
    Log2,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
    RoundToInt,
    ShapeEnv,
    SquareRoot,
    ToFloat,
    TruncToInt,
    create_symbol,
)


def test_symbols_are_made_as_dynamo_makes_them() -> None:
    env = ShapeEnv()
    symbol, number = create_symbol(env, "s", hint=8, lower=2, upper=64)
    assert number.node.expr == symbol
    assert number.node.hint == 8
    assert number.node.shape_env is env
    assert symbolic_shapes.is_single_number(number)
    bounds = env.bound_sympy(symbol)
    assert (bounds.lower, bounds.upper) == (2, 64)
    assert number < 10
    assert [str(guard.expr) for guard in env.guards] == [f"{symbol} < 10"]


def test_symbols_without_bounds_have_none() -> None:
    env = ShapeEnv()
    symbol, _ = create_symbol(env, "s", hint=8, lower=None, upper=None)
    bounds = env.bound_sympy(symbol)
    assert not isinstance(bounds.lower, sympy.Integer)
    assert not isinstance(bounds.upper, sympy.Integer)


def test_floats_that_are_read_of_tensors_are_numbered_as_they_come() -> None:
    env = ShapeEnv()
    first, second, third = (env.create_unbacked_symfloat() for _ in range(3))
    with pytest.raises(symbolic_shapes.GuardOnDataDependentSymNode) as raised:
        bool(first + third > 1)
    assert symbolic_shapes.unbacked_floats_of(raised.value) == {0, 2}
    with pytest.raises(symbolic_shapes.GuardOnDataDependentSymNode) as raised:
        bool(second > 1)
    assert symbolic_shapes.unbacked_floats_of(raised.value) == {1}


def test_ragged_sizes_are_no_single_number() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert not symbolic_shapes.is_single_number(nested.shape[1])


def test_operations_of_expressions_compute_what_they_are_called() -> None:
    computed = {
        CleanDiv(12, 4): 3,
        FloorDiv(7, 2): 3,
        Identity(5).args[0]: 5,
        Max(2, 3): 3,
        Min(2, 3): 2,
        Mod(7, 4): 3,
        ModularIndexing(13, 2, 4): 2,
        PowByNatural(2, 3): 8,
        PythonMod(-1, 4): 3,
    }
    assert {found: int(found) for found in computed} == computed
    roundings = (CeilToInt, FloorToInt, RoundToInt, TruncToInt)
    assert [int(rounded(IntTrueDiv(7, 2))) for rounded in roundings] == [4, 3, 4, 3]
    assert [int(rounded(IntTrueDiv(-5, 2))) for rounded in roundings] == [-2, -3, -2, -2]
    assert [float(found) for found in (IntTrueDiv(7, 2), FloatTrueDiv(1.5, 2.0), ToFloat(3))] == [3.5, 0.75, 3.0]
    assert [float(found) for found in (FloatPow(2.0, 0.5), SquareRoot(9.0), Log2(8.0))] == [2**0.5, 3.0, 3.0]
    assert symbolic_shapes.sym_log2(8) == 3.0


def test_sizes_that_depend_on_elements_are_noted() -> None:
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    with FakeTensorMode(shape_env=env), dispatching_in_python():
        found = torch.ones(4).nonzero()
        assert len(symbolic_shapes.bindings_of(env, found)) == 1


def test_numbers_that_are_no_part_of_a_result_have_no_place_in_it() -> None:
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    with FakeTensorMode(shape_env=env), dispatching_in_python():
        found = torch.narrow(torch.ones(4), 0, torch.zeros((), dtype=torch.int64), 2)
        assert env.pending_fresh_unbacked_symbols
        symbolic_shapes.bindings_of(env, found)
        assert not env.pending_fresh_unbacked_symbols
    assert found.shape == (2,)


def test_what_depends_on_elements_is_not_compared() -> None:
    env = ShapeEnv(allow_dynamic_output_shape_ops=True)
    with FakeTensorMode(shape_env=env), pytest.raises(symbolic_shapes.GuardOnDataDependentSymNode):
        assert torch.nonzero(torch.ones(4)).shape[0] == 3


def test_a_float_keeps_the_name_that_it_was_made_with() -> None:
    class Scaled(torch.nn.Module):
        eps = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.eps

    names = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        for node in graph_module.graph.find_nodes(op="placeholder"):
            memo = getattr(node.meta["example_value"], "item_memo", None)
            if isinstance(memo, torch.SymFloat):
                names.append((symbolic_shapes.unreplaced_symbol(memo), str(memo.node.expr)))
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(Scaled(), backend=backend, dynamic=True)(torch.ones(2))
    assert len(names) == 1
    assert names[0][0] == names[0][1]
