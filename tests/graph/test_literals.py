"""Arguments of calls survive the way there and back."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.devices import DeviceNumbers
from compilefarm.graph.dtypes import DTYPES, LAYOUTS, MEMORY_FORMATS
from compilefarm.graph.encode import encode_job
from compilefarm.graph.literals import ValueDecoder, ValueEncoder
from compilefarm.graph.testing import fixed_environment
from compilefarm.v1.graph_pb2 import Range, Value

_GRAPH = Graph()
_NODES = [_GRAPH.placeholder(f"x{number}") for number in range(3)]

_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**900), max_value=10**900),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.from_regex(r"[A-Za-z0-9_.,:+> ()*-]{0,9}", fullmatch=True).filter(lambda text: not text.startswith("cuda")),
    st.just(...),
    st.sampled_from(_NODES),
    st.sampled_from([torch.device("cpu"), torch.device("cuda"), torch.device("cuda", 0)]),
    st.sampled_from([*DTYPES.values(), *LAYOUTS.values(), *MEMORY_FORMATS.values()]),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-2, -1, 1, 3])),
)
_bounds = st.none() | st.integers(-9, 9) | st.sampled_from(_NODES)
_values = st.recursive(
    _plain | st.builds(slice, _bounds, _bounds, _bounds),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text("abc", min_size=1), inner)
    ),
    max_leaves=12,
)


def _encode(value: object) -> Value:
    into = Value()
    numbers = {node: number for number, node in enumerate(_NODES)}
    ValueEncoder(numbers=numbers, devices=DeviceNumbers()).write(value, into=into)
    return into


def _there_and_back(value: object) -> Any:
    return ValueDecoder(nodes=_NODES).read(Value.FromString(_encode(value).SerializeToString()))


def _same(first: Any, second: Any) -> bool:
    """Equal, of equal types all the way down, zeros of equal sign."""
    if type(first) is not type(second):
        return False
    match first:
        case list() | tuple():
            return len(first) == len(second) and all(map(_same, first, second))
        case dict():
            return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
        case range():
            return (first.start, first.stop, first.step) == (second.start, second.stop, second.step)
        case slice():
            return all(_same(getattr(first, part), getattr(second, part)) for part in ("start", "stop", "step"))
        case float():
            return first == second and math.copysign(1, first) == math.copysign(1, second)
        case complex():
            return _same(first.real, second.real) and _same(first.imag, second.imag)
        case _:
            return bool(first == second)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_values)
def test_what_comes_back_is_what_went(value: object) -> None:
    assert _same(_there_and_back(value), value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_values)
def test_equal_values_have_equal_bytes(value: object) -> None:
    assert _encode(value).SerializeToString() == _encode(_there_and_back(value)).SerializeToString()


def test_nan_stays_nan() -> None:
    assert math.isnan(_there_and_back(math.nan))
    assert math.isnan(_there_and_back(complex(1.0, math.nan)).imag)


@pytest.mark.parametrize("bits", [62, 63, 64, 65, 3000])
def test_integers_about_the_edge(bits: int) -> None:
    for value in (2**bits, 2**bits - 1, -(2**bits), -(2**bits) - 1):
        assert _there_and_back(value) == value


def test_dictionaries_are_sorted() -> None:
    assert _encode({"b": 1, "a": 2}) == _encode({"a": 2, "b": 1})


def test_a_size_is_a_tuple() -> None:
    assert _same(_there_and_back(torch.Size([2, 3])), (2, 3))


class Order(IntEnum):
    LAST = -1


class Kind(StrEnum):
    MEAN = "mean"


def test_an_enumeration_of_numbers_or_text_is_what_it_stands_for() -> None:
    assert _same(_there_and_back([Order.LAST, Kind.MEAN]), [-1, "mean"])


def test_a_range_that_does_not_move_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="step 0"):
        ValueDecoder(nodes=[]).read(Value(range=Range(start=1, stop=4)))


def test_a_gpu_in_a_text_is_a_device() -> None:
    assert _there_and_back("cuda:3") == torch.device("cuda", 0)
    assert _there_and_back("cuda") == torch.device("cuda")
    assert _there_and_back("cuda kernels") == "cuda kernels"


def test_nesting_that_is_sent_can_be_parsed_and_read() -> None:
    value: Any = 1
    deepest = None
    for _ in range(40):
        value = {"a": value}
        try:
            assert _there_and_back(value) == value
        except Bypass:
            break
        deepest = value
    else:
        pytest.fail("there is no limit")
    assert deepest is not None


def test_containers_of_nodes_are_collected() -> None:
    assert _same(_there_and_back([(_NODES[0], {"a": _NODES[2]})]), [(_NODES[0], {"a": _NODES[2]})])


def test_a_value_that_is_not_set() -> None:
    with pytest.raises(InvalidRequest):
        ValueDecoder(nodes=[]).read(Value())


@pytest.mark.parametrize("target", [torch.functional.einsum, torch.ops.aten.einsum.default, torch.ops.aten.einsum])
def test_an_equation_is_no_device(target: Any) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(target, ("cuda", x if target is torch.functional.einsum else [x])),))
    value = torch.rand(2, 3, 4, 5)
    encoded = encode_job(GraphModule({}, graph), [value], options={}, environment=fixed_environment)
    assert not encoded.cuda_devices
    (result,) = decode_job(encoded.job, blobs={}).graph_module(value)
    torch.testing.assert_close(result, torch.einsum("cuda", value))
