"""Canaries of torch_internals/numpy_calls.py."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from compilefarm.torch_internals import numpy_calls
from compilefarm.torch_internals.numpy_calls import ARRAY, AS_TYPE, EINSUM


def _called(function: Any, *inputs: Any) -> list[tuple[object, tuple[object, ...]]]:
    """What a graph of a function of NumPy calls, with what."""
    found: list[tuple[object, tuple[object, ...]]] = []

    def backend(graph_module: torch.fx.GraphModule, _: Any) -> Any:
        found.extend((node.target, node.args) for node in graph_module.graph.nodes if node.op == "call_function")
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found


def test_what_dynamo_writes_for_numpy_has_a_name() -> None:
    called = _called(lambda a: (np.sin(a) * a).sum(axis=0).astype(np.float64), np.ones((2, 2), dtype=np.float32))
    names = {numpy_calls.name_numpy_call(target) for target, _ in called}
    assert names == {"torch._numpy.sin", "torch._numpy.operator.mul", "torch._numpy.ndarray.sum", AS_TYPE}
    sine = next(target for target, _ in called if numpy_calls.name_numpy_call(target) == "torch._numpy.sin")
    assert numpy_calls.function_behind(sine) is torch._numpy.sin


def test_a_name_stands_for_what_computes_it() -> None:
    calls = numpy_calls.numpy_calls()
    x = torch.tensor([[1.0, 4.0], [9.0, 16.0]])
    torch.testing.assert_close(calls["torch._numpy.sqrt"](x), x.sqrt())
    torch.testing.assert_close(calls["torch._numpy.ndarray.sum"](x, axis=0), x.sum(0))
    torch.testing.assert_close(calls["torch._numpy.operator.mul"](x, x), x * x)
    torch.testing.assert_close(calls[EINSUM]("ij->ji", x), x.T)
    assert calls[AS_TYPE](x, "int64").dtype == torch.int64
    assert calls[ARRAY]([1, 2], ndmin=3).shape == (1, 1, 2)
    assert numpy_calls.operator_behind(calls["torch._numpy.operator.mul"]) is operator.mul
    assert numpy_calls.operator_behind(calls[EINSUM]) is None


def test_what_a_name_stands_for_is_found_as_torch_pickles_it() -> None:
    for name, call in numpy_calls.numpy_calls().items():
        assert getattr(numpy_calls, call.__name__) is call
        assert numpy_calls.name_numpy_call(call) in numpy_calls.numpy_calls(), name


def test_every_function_that_is_listed_exists() -> None:
    listed = {*numpy_calls._FUNCTIONS.split(), *numpy_calls._METHODS.split(), *numpy_calls._OPERATORS.split()}
    missing = {name for name in listed if not any(call.endswith(f".{name}") for call in numpy_calls.numpy_calls())}
    assert missing == set()


def test_attributes_of_arrays() -> None:
    called = _called(lambda a: np.transpose(a) + a.T, np.ones((2, 2), dtype=np.float32))
    assert "T" in {numpy_calls.find_attribute(target, args) for target, args in called}
    assert numpy_calls.find_attribute(getattr, (torch.ones(1), "T")) is None


def test_numbers_that_are_read_of_arrays_are_told() -> None:
    called = _called(lambda x: x * int(np.ceil(7 / 2)), torch.ones(2))
    read = [target for target, _ in called if numpy_calls.reads_number(target)]
    assert len(read) == 1
    assert numpy_calls.name_numpy_call(read[0]) is None
    assert not any(map(numpy_calls.reads_number, numpy_calls.numpy_calls().values()))
