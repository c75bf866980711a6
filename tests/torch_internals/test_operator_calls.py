"""Canaries of torch_internals/operator_calls.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.operator_calls import (
    OperatorMode,
    Watcher,
    dispatching_in_python,
    watching_operators,
)
from compilefarm.torch_internals.operators import OpOverload
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv, create_symbol


def watcher_into(seen: list[str]) -> Watcher:
    def watch(operator: OpOverload, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        seen.append(operator.name())
        return run()

    return watch


def test_operators_are_seen_while_graphs_run_on_fake_tensors() -> None:
    # torch/_subclasses/fake_tensor.py: FakeTensorMode.dispatch, by which every operator goes, and operators alone.
    seen: list[str] = []
    with FakeTensorMode():
        x = torch.ones(2, 3)
        with watching_operators(watcher_into(seen)):
            x[0].mul_(2)
            torch._foreach_add_([x], 1.0)
        torch.neg(x)
    assert {"aten::select.int", "aten::mul_.Tensor", "aten::_foreach_add_.Scalar"} <= set(seen)
    assert "aten::neg" not in seen


def test_operators_within_subgraphs_are_seen_each_time() -> None:
    # torch/_subclasses/fake_tensor.py: disable_fake_tensor_cache; the second run would come from the cache.
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    for _ in range(2):
        seen: list[str] = []
        with FakeTensorMode(), watching_operators(watcher_into(seen)):
            torch.cond(torch.ones((), dtype=torch.bool), branch, branch, (torch.ones(2),))
        assert "aten::sin" in seen


def test_operators_take_symbols_where_python_dispatches() -> None:
    env = ShapeEnv()
    _, size = create_symbol(env, "s", hint=8, lower=2, upper=None)
    with FakeTensorMode(shape_env=env), dispatching_in_python():
        assert isinstance(torch.ones(size, 3).repeat(2, 1).shape[0], torch.SymInt)


class Naming(OperatorMode):  # type: ignore[misc]  # torch gives it no type
    """Notes the operators that run, those within subgraphs among them."""

    # torch/_ops.py: HigherOrderOperator.dispatch asks for it.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def test_modes_are_told_of_operators_on_real_tensors() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    with Naming() as mode:
        torch.ones(2).mul_(2)
        torch.cond(torch.tensor(True), branch, branch, (torch.ones(2),))
    assert {"aten::mul_.Tensor", "cond"} <= set(mode.seen)
