"""Functions, classes and their like are told with what they hold, as far as a trace takes that for a constant: where
Dynamo reaches a function without a source, nothing guards it."""

from __future__ import annotations

import collections
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.distributions.constraints import interval
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import tree_flatten

from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.states import states

_HELD: dict[str, Callable[[int], Any]] = {
    "a large table": lambda number: dict.fromkeys(range(2000)) | {"number": number},
    "a table in another": lambda number: [{"number": [number]}],
    "bytes that change": lambda number: bytearray([number]),
    "a slice": lambda number: slice(number),
    "a range": range,
    "items in circles": lambda number: collections.deque([number]),
    "a match": lambda number: re.match("a*", "a" * number),
    "a set in order": lambda number: OrderedSet([number]),
    "an interval": lambda number: interval(0, number),
    "a parameter": lambda number: inspect.Parameter("x", inspect.Parameter.KEYWORD_ONLY, default=number),
    "a form of trees": lambda number: tree_flatten([0] * number)[1],
    "a class without a place": lambda number: type("Held", (), {"number": number}),
}


def _holding(value: Any) -> Callable[[], Any]:
    return lambda: value


@pytest.mark.parametrize("make", _HELD.values(), ids=_HELD)
def test_what_a_function_holds_is_told(make: Callable[[int], Any]) -> None:
    once, again, other = (Describer().identity(_holding(make(number))) for number in (2, 2, 3))
    assert once == again != other


def test_the_version_of_numpy_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whose numbers Dynamo computes with while it traces, which releases of NumPy convert in other ways.
    before = states(Describer())
    monkeypatch.setattr(numpy, "__version__", "1.26.4")
    after = states(Describer())
    assert [name for name in before if before[name] != after[name]] == ["versions"]


class _Endless(dict[str, int]):
    """A mapping that makes what it is asked for."""

    def __len__(self) -> int:
        return 1_000_000

    def items(self) -> Any:
        raise AssertionError("all of it is asked for")


def test_a_large_mapping_of_its_own_class_is_not_gone_through() -> None:
    assert "_Endless" in Describer()._member(_Endless())


def test_of_other_objects_it_is_told_what_they_are() -> None:
    assert Describer().identity(_holding(torch.Generator())) == Describer().identity(_holding(torch.Generator()))


_LIMIT = 2


class _Bounded:
    """What Python asks a number of, by way of another function."""

    settings: object = {"limit": (1, 2)}

    def __bool__(self) -> bool:
        return self.is_within()

    def is_within(self) -> bool:
        return _LIMIT == 2 and bool(self.settings)


class _Number(_Bounded, int):
    """A number whose truth another class decides."""


def test_what_python_is_asked_of_a_number_is_told_with_all_that_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Describer().identity(_Number)
    monkeypatch.setattr(_Bounded, "settings", {"limit": (1, 3)})
    second = Describer().identity(_Number)
    monkeypatch.setattr(f"{__name__}._LIMIT", 3)
    assert len({first, second, Describer().identity(_Number)}) == 3
    monkeypatch.setattr(_Bounded, "settings", types.SimpleNamespace(limit=2))
    with pytest.raises(Unsayable):
        Describer().identity(_Number)
