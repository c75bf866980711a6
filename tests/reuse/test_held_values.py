"""Functions, classes and their like are told with what they hold, as far as a trace takes that for a constant: where
Dynamo reaches a function without a source, nothing guards it."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import enum
import functools
import inspect
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.utils.checkpoint
from torch.distributions.constraints import interval
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import tree_flatten

from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.refusals import Unsayable
from compilefarm.reuse.states import states
from compilefarm.torch_internals.dynamo_frames import NOT_TRACED_FORM

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
    assert "_Endless" in Describer().member(_Endless())


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


def _number(**members: Any) -> type:
    return type("Number", (int,), members)


def _holder(number: int) -> Any:
    return types.SimpleNamespace(number=number)


def _metaclass(name: str, function: Any) -> type:
    return type("Meta", (type,), {name: function})


def _reads(thing: Any) -> Any:
    return thing.settings.number


def _reads_by_text(thing: Any, name: str) -> Any:
    return getattr(thing, name).number


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _calling(value: Any) -> Callable[..., Any]:
    return lambda *_: value()


def _answering(number: int) -> type:
    return _metaclass("__getattr__", lambda _, name: number if name == "limit" else None)("Answering", (), {})


def _asked(made: Any, ask: Callable[[Any], Any]) -> type:
    """A number whose truth is what is asked of something."""
    return _number(__bool__=lambda _: ask(made))


class _Callable:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, *_: object) -> int:
        return self.number


class _Property(enum.Enum):
    """What an enumeration with values of one kind computes of them."""

    @property
    def number(self) -> Any:
        return self.value.number


_SETTINGS, _TEXT = "settings", "{0.settings}"
_Pair = collections.namedtuple("_Pair", "first second")
_READ: dict[str, Callable[[int], type]] = {
    "an object by text": lambda number: _number(settings=_holder(number), __bool__=lambda own: getattr(own, _SETTINGS)),
    "an object by an item": lambda number: _number(
        settings=_holder(number), __bool__=lambda own: type(own).__dict__["settings"].number
    ),
    "an object in a text": lambda number: _number(settings=_holder(number), __str__=lambda own: _TEXT.format(own)),
    "an object by a getter": lambda number: _number(
        settings=_holder(number), __bool__=lambda own: operator.attrgetter("settings.number")(own)
    ),
    "an object by another function": lambda number: _number(settings=_holder(number), __bool__=lambda own: _reads(own)),
    "an object by text in another function": lambda number: _number(
        settings=_holder(number), __bool__=lambda own: _reads_by_text(own, "settings")
    ),
    "an object that is called": lambda number: _number(__bool__=_Callable(number)),
    "a method of an object": lambda number: _number(__bool__=_Callable(number).__call__),
    "a method that calls one": lambda number: _asked(_Callable(number).__call__, _calling),
    "a partial method": lambda number: _number(__bool__=functools.partialmethod(_reads, _holder(number))),
    "a function in a set": lambda number: _asked({_returning(_holder(number))}, list),
    "what a class answers": lambda number: _asked(_answering(number), lambda made: made.limit),
    "a variable of the context": lambda number: _asked(
        contextvars.ContextVar("a", default=number), lambda made: made.get()
    ),
    "a value of the enumeration itself": lambda number: _Property("Enumeration", {"ONE": _holder(number)}),
    "an item by a metaclass": lambda number: _metaclass("__getitem__", lambda own, _: own.settings.number)(
        "Indexed", (), {"settings": _holder(number)}
    ),
    "a truth by a metaclass and a function": lambda number: _metaclass("__bool__", _reads)(
        "Settings", (), {"settings": _holder(number)}
    ),
    "an item of a class by text": lambda number: type(
        "Indexed", (), {"settings": _holder(number), "__class_getitem__": lambda item: _reads_by_text(Indexed, item)}
    ),
    "a field of a named tuple": lambda number: type(
        "Named", (_Pair,), {"field": vars(_Pair)[_Pair._fields[number - 2]]}
    ),
}


class Indexed:
    """A class that is read by text."""


@pytest.mark.parametrize("make", _READ.values(), ids=_READ)
def test_what_is_called_of_a_class_is_told_with_what_it_reads_or_refused(make: Callable[[int], type]) -> None:
    with contextlib.suppress(Unsayable):
        assert Describer().identity(make(2)) != Describer().identity(make(3))


class _Even:
    pass


class _Odd:
    pass


_chosen: type = _Even


class _Chooses(int):
    def __bool__(self) -> bool:
        return (_Even, _Odd).index(_chosen) == self


def test_which_of_several_objects_a_name_stands_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Describer().identity(_Chooses)
    monkeypatch.setattr(f"{__name__}._chosen", _Odd)
    assert Describer().identity(_Chooses) != first


@functools.cache
def _remembered() -> bool:
    return _chosen is _Even


class _Remembers(int):
    def __bool__(self) -> bool:
        return _remembered()


def test_what_a_function_remembers_of_before_is_refused() -> None:
    with pytest.raises(Unsayable, match="_remembered"):
        Describer().identity(_Remembers)


class _Flags(enum.Flag):
    ONE = 1
    TWO = 2
    FOUR = 4


def test_flags_that_were_combined_change_nothing() -> None:
    before = Describer().identity(_Flags)
    assert (_Flags.ONE | _Flags.TWO) & ~_Flags.ONE is _Flags.TWO
    assert Describer().identity(_Flags) == before


def test_a_function_of_torch_that_was_called_is_told_as_one_that_was_not() -> None:
    function = torch.utils.checkpoint.checkpoint
    inspect.unwrap(function).__dict__.pop(NOT_TRACED_FORM, None)
    before = Describer().identity(function)
    function(torch.sin, torch.ones(2), use_reentrant=False)
    assert NOT_TRACED_FORM in inspect.unwrap(function).__dict__
    assert Describer().identity(function) == before
