"""Cases of tests/reuse/hazards.py about objects: what their classes answer to Python, how they are made, what hangs on
them, and what the interpreter's own kinds of objects hold."""

from __future__ import annotations

import abc
import array
import collections
import contextlib
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import importlib
import inspect
import itertools
import numbers
import operator
import pathlib
import re
import string
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.reuse.cases import Case, X, case, given, more, patched, unsaid
from tests.reuse.python_hazards import Calls, Held

_HERE = sys.modules[__name__]
_FACTOR = 2.0


class Answers:
    """An object that answers all that Python asks of objects."""

    value = 2.0

    def __getitem__(self, item: Any) -> float:
        return 2.0

    def __len__(self) -> int:
        return 2

    def __bool__(self) -> bool:
        return True

    def __contains__(self, item: Any) -> bool:
        return True

    def __iter__(self) -> Iterator[float]:
        return iter((1.0, 2.0))

    def __call__(self) -> float:
        return 2.0

    def __enter__(self) -> float:
        return 2.0

    def __exit__(self, *_: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return True

    def __add__(self, other: Any) -> float:
        return 2.0

    def __radd__(self, other: Any) -> float:
        return 2.0

    def __neg__(self) -> float:
        return 2.0

    def __index__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 2.0

    def __int__(self) -> int:
        return 2

    def __str__(self) -> str:
        return "ab"

    def __repr__(self) -> str:
        return "ab"

    def __format__(self, specification: str) -> str:
        return "ab"

    def __getattr__(self, name: str) -> float:
        if name == "missing":
            return 2.0
        raise AttributeError(name)

    def __reversed__(self) -> Iterator[float]:
        return iter((2.0, 1.0))

    def __matmul__(self, other: Any) -> float:
        return 2.0

    def __iadd__(self, other: Any) -> float:
        return 2.0

    __hash__ = object.__hash__


def _enters(thing: Any) -> float:
    with thing as value:
        return value


def _adds(thing: Any) -> float:
    thing += 1
    return thing


_ASKS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "getitem": (lambda a: a["x"], lambda self, item: 3.0),
    "len": (len, lambda self: 3),
    "bool": (lambda a: 2 if a else 3, lambda self: False),
    "contains": (lambda a: 2 if 1 in a else 3, lambda self, item: False),
    "iter": (lambda a: sum(list(a)), lambda self: iter((5.0, 2.0))),
    "call": (lambda a: a(), lambda self: 3.0),
    "enter": (_enters, lambda self: 3.0),
    "eq": (lambda a: 2 if a == 1 else 3, lambda self, other: False),
    "lt": (lambda a: 2 if a < 1 else 3, lambda self, other: False),
    "add": (lambda a: a + 1, lambda self, other: 3.0),
    "radd": (lambda a: 1 + a, lambda self, other: 3.0),
    "neg": (operator.neg, lambda self: 3.0),
    "index": (lambda a: (2.0, 3.0, 4.0)[a], lambda self: 2),
    "float": (float, lambda self: 3.0),
    "int": (int, lambda self: 3),
    "str": (lambda a: len(str(a)), lambda self: "abc"),
    "repr": (lambda a: len(repr(a)), lambda self: "abc"),
    "format": (lambda a: len(f"{a}"), lambda self, specification: "abc"),
    "getattr": (lambda a: a.missing, lambda self, name: 3.0),
    "reversed": (lambda a: next(reversed(a)), lambda self: iter((3.0, 1.0))),
    "matmul": (lambda a: a @ 1, lambda self, other: 3.0),
    "iadd": (_adds, lambda self, other: 3.0),
}


def _asks(x: torch.Tensor, ask: Callable[[Any], Any], thing: Any) -> torch.Tensor:
    return x * ask(thing)


def _of_special_method(name: str, ask: Callable[[Any], Any], other: Callable[..., Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        with patched(Answers, f"__{name}__", other, when=changed):
            yield _asks, (X, ask, Answers())

    another.__name__ = f"another_answer_to_{name}"
    more(another)


for _name, (_ask, _other) in _ASKS.items():
    _of_special_method(_name, _ask, _other)


def _reads_value(x: torch.Tensor, thing: Any) -> torch.Tensor:
    return x * thing.value


@case
def another_getattribute(changed: bool) -> Iterator[Any]:
    def finds(self: Any, name: str) -> Any:
        return 3.0 if name == "value" else object.__getattribute__(self, name)

    with patched(Answers, "__getattribute__", finds, when=changed):
        yield _reads_value, (X, Answers())


@case
def a_getattr_that_is_deleted(changed: bool) -> Iterator[Any]:
    class Local:
        def __getattr__(self, name: str) -> float:
            return 2.0

    if changed:
        del Local.__getattr__
    yield lambda x, thing: x * getattr(thing, "value", 3.0), (X, Local())


class First:
    value = 2.0

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Second:
    value = 3.0

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@case
def another_class_that_was_assigned(changed: bool) -> Iterator[Any]:
    thing = First()
    if changed:
        thing.__class__ = Second  # type: ignore[assignment]
    yield lambda x, thing: thing.times(x), (X, thing)


class _Base:
    value = 2.0


class _OtherBase:
    value = 3.0


class _Derived(_Base):
    pass


@case
def other_bases_of_a_class(changed: bool) -> Iterator[Any]:
    before = _Derived.__bases__
    _Derived.__bases__ = (_OtherBase,) if changed else before
    try:
        yield _reads_value, (X, _Derived())
    finally:
        _Derived.__bases__ = before


class _Loud(_Base):
    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * super().value


@case
def an_attribute_that_super_finds(changed: bool) -> Iterator[Any]:
    with patched(_Base, "value", 3.0, when=changed):
        yield lambda x, thing: thing.times(x), (X, _Loud())


class _Meta(type):
    @property
    def factor(cls) -> float:
        return 2.0

    def __call__(cls, *arguments: Any) -> Any:
        return super().__call__(*arguments)

    def __len__(cls) -> int:
        return 2

    def __contains__(cls, item: object) -> bool:
        return True

    def __getattr__(cls, name: str) -> float:
        if name == "answered":
            return 2.0
        raise AttributeError(name)

    def __iter__(cls) -> Iterator[float]:
        return iter((2.0,))

    def __getitem__(cls, item: Any) -> float:
        return 2.0


class OfMeta(metaclass=_Meta):
    def __init__(self, value: float = 2.0) -> None:
        self.value = value


def _of_metaclass(name: str, attribute: str, ask: Callable[[torch.Tensor], torch.Tensor], other: Any) -> None:
    def another(changed: bool) -> Iterator[Any]:
        with patched(_Meta, attribute, other, when=changed):
            yield ask, (X,)

    another.__name__ = name
    more(another)


_of_metaclass("a_property_of_a_metaclass", "factor", lambda x: x * OfMeta.factor, property(lambda cls: 3.0))
_of_metaclass("a_length_of_a_class", "__len__", lambda x: x * len(OfMeta), lambda cls: 3)  # type: ignore[arg-type]
_of_metaclass("a_member_of_a_class", "__contains__", lambda x: x * (2 if 1 in OfMeta else 3), lambda cls, item: False)
_of_metaclass("an_item_of_a_class", "__getitem__", lambda x: x * OfMeta[1], lambda cls, item: 3.0)
_of_metaclass("a_class_that_is_gone_through", "__iter__", lambda x: x * sum(list(OfMeta)), lambda cls: iter((3.0,)))


class Made:
    def __new__(cls, value: float) -> Any:
        return super().__new__(cls)

    def __init__(self, value: float) -> None:
        self.value = value


def makes(x: torch.Tensor) -> torch.Tensor:
    return x * Made(2.0).value


@case
def another_initialiser(changed: bool) -> Iterator[Any]:
    def starts(self: Any, value: float) -> None:
        self.value = value + 1

    with patched(Made, "__init__", starts, when=changed):
        yield makes, (X,)


@case
def another_way_to_make_an_object(changed: bool) -> Iterator[Any]:
    class Local:
        def __new__(cls, value: float) -> Any:
            made = super().__new__(cls)
            made.value = value + (1 if changed else 0)
            return made

    yield lambda x: x * Local(2.0).value, (X,)


class Slotted:
    __slots__ = ("other", "value")

    def __init__(self, value: float, other: float = 7.0) -> None:
        self.value = value
        self.other = other


@case
def another_value_of_a_slot(changed: bool) -> Iterator[Any]:
    yield _reads_value, (X, Slotted(3.0 if changed else 2.0))


@case
def a_property_in_place_of_a_slot(changed: bool) -> Iterator[Any]:
    with patched(Slotted, "value", property(lambda self: 3.0, lambda self, value: None), when=changed):
        yield _reads_value, (X, Slotted(2.0))


@case
def a_slot_in_place_of_another(changed: bool) -> Iterator[Any]:
    thing = Slotted(2.0)
    with patched(Slotted, "value", Slotted.other, when=changed):
        yield _reads_value, (X, thing)


@case
def a_slot_that_is_empty(changed: bool) -> Iterator[Any]:
    thing = Slotted(2.0)
    if changed:
        del thing.value
    yield lambda x, thing: x * getattr(thing, "value", 3.0), (X, thing)


@case
def slots_that_are_listed(changed: bool) -> Iterator[Any]:
    with patched(Slotted, "__slots__", ("other", "value", "more"), when=changed):
        yield lambda x, thing: x * len(thing.__slots__), (X, Slotted(2.0))


class _NoData:
    def __get__(self, owner: Any, kind: Any = None) -> float:
        return 2.0


class HasNoData:
    value = _NoData()


@case
def a_descriptor_that_an_attribute_hides(changed: bool) -> Iterator[Any]:
    thing = HasNoData()
    if changed:
        vars(thing)["value"] = 3.0
    yield _reads_value, (X, thing)


@case
def a_descriptor_that_comes_to_hold_data(changed: bool) -> Iterator[Any]:
    thing = HasNoData()
    vars(thing)["value"] = 3.0
    with patched(_NoData, "__set__", lambda self, owner, value: None, when=changed):
        yield _reads_value, (X, thing)


class _Named:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: Any = None) -> float:
        return owner._values[self.name]


class HasNamed:
    first, second = _Named(), _Named()
    _values: typing.ClassVar = {"first": 2.0, "second": 3.0}


@case
def a_descriptor_of_another_name(changed: bool) -> Iterator[Any]:
    with patched(HasNamed, "first", vars(HasNamed)["second"], when=changed):
        yield lambda x, thing: x * thing.first, (X, HasNamed())


class Cached:
    @functools.cached_property
    def value(self) -> float:
        return _FACTOR


@case
def a_value_that_was_cached(changed: bool) -> Iterator[Any]:
    thing = Cached()
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        _ = thing.value
    yield _reads_value, (X, thing)


@case
def a_value_that_is_to_be_cached(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield _reads_value, (X, Cached())


class HasPartial:
    def by(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    twice = functools.partialmethod(by, factor=2.0)


if sys.version_info < (3, 13):

    @case
    def a_value_that_a_property_of_a_class_holds(changed: bool) -> Iterator[Any]:
        held = bytearray([3 if changed else 2])

        class Local:
            # Dynamo reaches its function without a source.
            factor = classmethod(property(lambda _: held))  # type: ignore[arg-type]

        yield lambda x: x * Local.factor[0], (X,)


@unsaid
def another_argument_of_a_partial_method(changed: bool) -> Iterator[Any]:
    with patched(HasPartial, "twice", functools.partialmethod(HasPartial.by, factor=3.0), when=changed):
        yield lambda x, thing: thing.twice(x), (X, HasPartial())


@case
def a_registration_of_single_dispatch(changed: bool) -> Iterator[Any]:
    @functools.singledispatch
    def dispatched(x: Any) -> Any:
        return x * 2

    if changed:
        dispatched.register(torch.Tensor, lambda x: x * 3)
    yield lambda x: dispatched(x), (X,)


class Dispatching:
    @functools.singledispatchmethod
    def times(self, x: Any) -> Any:
        return x * 2


@more
def a_registration_of_a_method(changed: bool) -> Iterator[Any]:
    class Local:
        @functools.singledispatchmethod
        def times(self, x: Any) -> Any:
            return x * 2

    if changed:
        Local.times.register(torch.Tensor, lambda self, x: x * 3)
    yield lambda x, thing: thing.times(x), (X, Local())


# Data classes and named tuples.


@dataclasses.dataclass
class Setting:
    value: float = 2.0
    more: list[float] = dataclasses.field(default_factory=lambda: [2.0])
    marked: float = dataclasses.field(default=2.0, metadata={"factor": 2.0})

    def __post_init__(self) -> None:
        self.after = 2.0


def makes_a_setting(x: torch.Tensor) -> torch.Tensor:
    setting = Setting()
    return x * setting.value * setting.more[0] * setting.after


@case
def another_default_of_a_field(changed: bool) -> Iterator[Any]:
    with patched(Setting.__init__, "__defaults__", (3.0, *Setting.__init__.__defaults__[1:]), when=changed):
        yield makes_a_setting, (X,)


@case
def another_factory_of_a_field(changed: bool) -> Iterator[Any]:
    cells = dict(zip(Setting.__init__.__code__.co_freevars, Setting.__init__.__closure__ or (), strict=True))
    cell = next(each for name, each in cells.items() if "dflt_more" in name)
    before = cell.cell_contents
    cell.cell_contents = (lambda: [3.0]) if changed else before
    try:
        yield makes_a_setting, (X,)
    finally:
        cell.cell_contents = before


@case
def what_follows_the_making_of_a_data_class(changed: bool) -> Iterator[Any]:
    def follows(self: Any) -> None:
        self.after = 3.0

    with patched(Setting, "__post_init__", follows, when=changed):
        yield makes_a_setting, (X,)


def _field_names(x: torch.Tensor, thing: Any) -> torch.Tensor:
    return x * len(dataclasses.fields(thing))


@case
def fewer_fields_of_a_data_class(changed: bool) -> Iterator[Any]:
    fields = dict(Setting.__dataclass_fields__)
    fields.pop("marked")
    with patched(Setting, "__dataclass_fields__", fields, when=changed):
        yield _field_names, (X, Setting())


@case
def a_data_class_as_a_dictionary(changed: bool) -> Iterator[Any]:
    yield lambda x, thing: x * dataclasses.asdict(thing)["value"], (X, Setting(3.0 if changed else 2.0))


@case
def a_data_class_with_another_value(changed: bool) -> Iterator[Any]:
    yield (
        lambda x, thing: x * dataclasses.replace(thing, marked=1.0).value,
        (X, Setting(3.0 if changed else 2.0)),
    )


class Point(typing.NamedTuple):
    first: float
    second: float = 2.0


@case
def another_default_of_a_named_tuple(changed: bool) -> Iterator[Any]:
    with patched(Point.__new__, "__defaults__", (3.0,), when=changed):
        yield lambda x: x * Point(1.0).second, (X,)


@case
def what_makes_a_named_tuple(changed: bool) -> Iterator[Any]:
    with patched(Point, "_make", classmethod(lambda cls, values: (3.0, *values)), when=changed):
        yield lambda x: x * sum(Point._make((1.0, 1.0))), (X,)


@case
def another_place_of_a_named_field(changed: bool) -> Iterator[Any]:
    with patched(Point, "first", vars(Point)["second"], when=changed):
        yield lambda x, thing: x * thing.first, (X, Point(5.0))


_POINT = Point(5.0)


@case
def another_place_of_a_named_field_of_a_class(changed: bool) -> Iterator[Any]:
    with patched(Point, "first", vars(Point)["second"], when=changed):
        yield lambda x: x * _POINT.first, (X,)


class SaidByText:
    """A class that finds what it answers by a text."""

    settings = types.SimpleNamespace(factor=2.0)

    def __class_getitem__(cls, item: str) -> Any:
        return getattr(cls, item).factor


@unsaid
def what_a_class_finds_by_text(changed: bool) -> Iterator[Any]:
    with patched(SaidByText.settings, "factor", 3.0, when=changed):
        yield lambda x: x * SaidByText["settings"], (X,)


class AnswersForClasses(type):
    def __getitem__(cls, item: str) -> Any:
        return cls.settings.factor  # type: ignore[attr-defined]


class SaidByMetaclass(metaclass=AnswersForClasses):
    settings = types.SimpleNamespace(factor=2.0)


@unsaid
def what_a_metaclass_reads_of_a_class(changed: bool) -> Iterator[Any]:
    with patched(SaidByMetaclass.settings, "factor", 3.0, when=changed):
        yield lambda x: x * SaidByMetaclass["factor"], (X,)


# Enumerations.


# As cases make it.
Shade: Any = None


class Weekday(enum.IntEnum):
    MONDAY = 2
    TUESDAY = 3


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Text(enum.StrEnum):
    FIRST = "ab"
    SECOND = "abc"


def _enumeration(name: str, *, members: dict[str, Any], others: dict[str, Any], ask: Callable[..., Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        made = enum.Enum("Shade", others if changed else members, module=__name__, qualname="Shade")
        with patched(_HERE, "Shade", made, when=True):
            yield ask, (X,)

    another.__name__ = name
    more(another)


_PAIR = {"LIGHT": 1, "DARK": 2}
_enumeration(
    "another_alias_of_a_member",
    members={**_PAIR, "BRIGHT": 1},
    others={**_PAIR, "BRIGHT": 2},
    ask=lambda x: x * Shade.BRIGHT.value,
)
_enumeration(
    "an_alias_by_name",
    members={**_PAIR, "BRIGHT": 1},
    others={**_PAIR, "BRIGHT": 2},
    ask=lambda x: x * Shade["BRIGHT"].value,
)
_enumeration("members_that_are_counted", members=_PAIR, others={**_PAIR, "BRIGHT": 3}, ask=lambda x: x * len(Shade))
_enumeration(
    "members_in_another_order",
    members=_PAIR,
    others={"DARK": 2, "LIGHT": 1},
    ask=lambda x: x * next(iter(Shade)).value,
)
_enumeration(
    "a_member_by_its_value",
    members=_PAIR,
    others={"DARK": 1, "LIGHT": 2},
    ask=lambda x: x * (2 if Shade(1) is Shade.LIGHT else 3),
)
_enumeration(
    "names_of_members",
    members=_PAIR,
    others={"LIGHT": 1, "DARKEST": 2},
    ask=lambda x: x * len(list(Shade.__members__)[1]),
)


@case
def a_member_that_is_a_number(changed: bool) -> Iterator[Any]:
    yield Calls(lambda x, day: x * day, Weekday.TUESDAY if changed else Weekday.MONDAY), (X,)


@case
def flags_that_are_combined(changed: bool) -> Iterator[Any]:
    yield (
        Calls(lambda x, mode: x * (2 if Mode.WRITE in mode else 3), Mode.READ if changed else Mode.READ | Mode.WRITE),
        (X,),
    )


@case
def a_member_that_is_a_text(changed: bool) -> Iterator[Any]:
    yield Calls(lambda x, text: x * len(text), Text.SECOND if changed else Text.FIRST), (X,)


# Kinds of objects that the interpreter and its library bring along.


class Whole(int):
    note = 2.0


class Real(float):
    note = 2.0


class Words(str):
    note = 2.0


class Factored(float):
    box = Held(2.0)

    def scaled(self) -> float:
        return self * _FACTOR

    def held(self) -> float:
        return self * self.box.value

    def own(self) -> float:
        return self * self.mine.value


class Pair(tuple[Any, ...]):
    note = 2.0


class Row(list[Any]):
    def __getitem__(self, item: Any) -> Any:
        return super().__getitem__(item) * 2


class Table(dict[str, Any]):
    def __missing__(self, key: str) -> float:
        return 2.0

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)


def holding(
    name: str,
    before: Callable[[], Any],
    after: Callable[[], Any],
    ask: Callable[..., Any],
    *,
    register: Callable[..., Case] = more,
) -> None:
    """A case of an object that a model holds, and one of the same as an argument."""

    given(
        f"{name}_that_is_held",
        before,
        after,
        ask,
        within=lambda ask, value: (Calls(ask, value), (X,)),
        register=register,
    )
    given(f"{name}_that_is_given", before, after, ask)


class Switch(int):
    def __bool__(self) -> bool:
        return _FACTOR == 2.0


class Label(str):
    def __format__(self, specification: str) -> str:
        return "ab" if _FACTOR == 2.0 else "abc"


class Spread(typing.NamedTuple):
    width: float


class Scaled(Spread):
    @functools.cached_property
    def width_here(self) -> float:
        return self.width * _FACTOR


_CALLED_BY_PYTHON: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "what_makes_a_number_of_its_own_class_true": lambda x: x * (2 if Switch(1) else 3),
    "what_a_text_of_its_own_class_is_in_others": lambda x: x * len(f"{Label('a')}"),
    "what_a_named_tuple_computes": lambda x: x * Scaled(2.0).width_here,
}


def _read_by_python(name: str, ask: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A case of a function that Dynamo leaves to Python, and that reads a global variable."""

    def another(changed: bool) -> Iterator[Any]:
        with patched(_HERE, "_FACTOR", 3.0, when=changed):
            yield ask, (X,)

    another.__name__ = name
    case(another)


for _name, _ask in _CALLED_BY_PYTHON.items():
    _read_by_python(_name, _ask)


@case
def what_a_number_of_its_own_class_reads(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield Calls(lambda x, number: x * number.scaled(), Factored(1.5)), (X,)


@case
def what_the_class_of_a_number_holds(changed: bool) -> Iterator[Any]:
    with patched(Factored.box, "value", 3.0, when=changed):
        yield Calls(lambda x, number: x * number.held(), Factored(1.5)), (X,)


@more
def what_a_number_of_its_own_class_holds(changed: bool) -> Iterator[Any]:
    number = Factored(1.5)
    number.mine = Held(3.0 if changed else 2.0)
    yield Calls(lambda x, number: x * number.own(), number), (X,)


_value = lambda x, thing: x * thing  # noqa: E731
holding("a_whole_number_of_its_own_class", lambda: Whole(2), lambda: Whole(3), _value, register=case)
holding("a_number_of_its_own_class", lambda: Real(2.0), lambda: Real(3.0), _value, register=case)
holding("a_text_of_its_own_class", lambda: Words("ab"), lambda: Words("abc"), lambda x, t: x * len(t), register=case)
holding("a_tuple_of_its_own_class", lambda: Pair((1, 2.0)), lambda: Pair((1, 3.0)), lambda x, t: x * t[1])
holding("a_list_of_its_own_class", lambda: Row([1, 2.0]), lambda: Row([1, 3.0]), lambda x, t: x * t[1])
holding("a_table_of_its_own_class", lambda: Table(a=2.0), lambda: Table(a=3.0), lambda x, t: x * t["a"])
holding("a_table_without_an_entry", lambda: Table(a=2.0), lambda: Table(b=3.0), lambda x, t: x * t["a"] + t["b"])
holding(
    "a_factory_of_a_table",
    lambda: collections.defaultdict(lambda: 2.0),
    lambda: collections.defaultdict(lambda: 3.0),
    lambda x, t: x * t["a"],
)
holding("a_counter", lambda: collections.Counter("aab"), lambda: collections.Counter("aaab"), lambda x, t: x * t["a"])
holding("a_queue", lambda: collections.deque([1.0, 2.0]), lambda: collections.deque([1.0, 3.0]), lambda x, t: x * t[1])
holding(
    "maps_in_a_chain",
    lambda: collections.ChainMap({}, {"a": 2.0}),
    lambda: collections.ChainMap({"a": 3.0}, {"a": 2.0}),
    lambda x, t: x * t["a"],
)
holding(
    "a_view_of_a_table",
    lambda: types.MappingProxyType({"a": 2.0}),
    lambda: types.MappingProxyType({"a": 3.0}),
    lambda x, t: x * t["a"],
)
holding(
    "a_user_s_table",
    lambda: collections.UserDict(a=2.0),
    lambda: collections.UserDict(a=3.0),
    lambda x, t: x * t["a"],
)
holding("a_namespace", lambda: types.SimpleNamespace(a=2.0), lambda: types.SimpleNamespace(a=3.0), lambda x, t: x * t.a)
holding("a_slice", lambda: slice(0, 2), lambda: slice(0, 3), lambda x, t: x[t] * 2)
holding("a_range", lambda: range(2), lambda: range(3), lambda x, t: x * (1 + len(t)))
holding("bytes", lambda: b"ab", lambda: b"abc", lambda x, t: x * len(t))
holding("bytes_that_change", lambda: bytearray(b"ab"), lambda: bytearray(b"abc"), lambda x, t: x * len(t))
holding("numbers_in_an_array", lambda: array.array("d", [2.0]), lambda: array.array("d", [3.0]), lambda x, t: x * t[0])
holding("a_complex_number", lambda: 2 + 1j, lambda: 3 + 1j, lambda x, t: x * t.real)
holding("a_match", lambda: re.match("a*", "aa"), lambda: re.match("a*", "aaa"), lambda x, t: x * t.end(), register=case)
holding(
    "limits_of_a_dtype",
    lambda: torch.finfo(torch.float32),
    lambda: torch.finfo(torch.float64),
    lambda x, t: x * t.eps,
    register=case,
)
holding("a_negative_zero", lambda: 0.0, lambda: -0.0, lambda x, t: torch.atan2(x * 0 + t, -x.abs() - 1))
holding("a_number_that_is_none", lambda: 2.0, lambda: float("nan"), lambda x, t: x * (t if t == t else 3.0))
holding("a_flag_that_is_a_number", lambda: 1, lambda: True, lambda x, t: x * (3 if t is True else 2))
holding("a_large_number", lambda: 2**70, lambda: 2**71, lambda x, t: x * (t >> 69))
holding("a_decimal", lambda: decimal.Decimal(2), lambda: decimal.Decimal(3), lambda x, t: x * float(t))
holding("a_fraction", lambda: fractions.Fraction(2, 1), lambda: fractions.Fraction(3, 1), lambda x, t: x * float(t))
holding("a_duration", lambda: datetime.timedelta(2), lambda: datetime.timedelta(3), lambda x, t: x * t.days)
holding("a_date", lambda: datetime.date(2, 1, 1), lambda: datetime.date(3, 1, 1), lambda x, t: x * t.year)
holding(
    "a_path", lambda: pathlib.PurePosixPath("ab"), lambda: pathlib.PurePosixPath("abc"), lambda x, t: x * len(t.name)
)
holding("a_template", lambda: string.Template("ab"), lambda: string.Template("abc"), lambda x, t: x * len(t.template))
holding(
    "a_reference", lambda: Box2(2.0).reference, lambda: Box2(3.0).reference, lambda x, t: x * t().value, register=case
)
holding("a_proxy", lambda: Box2(2.0).proxy, lambda: Box2(3.0).proxy, lambda x, t: x * t.value)
holding("an_iterator", lambda: iter([2.0, 3.0]), lambda: _advanced(iter([2.0, 3.0])), lambda x, t: x * next(t))
holding("a_generator", lambda: _generated(2.0), lambda: _generated(3.0), lambda x, t: x * next(t))
holding("a_counting_iterator", lambda: itertools.count(2), lambda: itertools.count(3), lambda x, t: x * next(t))
holding("pairs_of_iterators", lambda: zip([2.0], [1.0]), lambda: zip([3.0], [1.0]), lambda x, t: x * next(t)[0])  # noqa: B905
holding("a_mapped_iterator", lambda: map(float, [2]), lambda: map(float, [3]), lambda x, t: x * next(t))
holding("numbered_items", lambda: enumerate([1.0], 2), lambda: enumerate([1.0], 3), lambda x, t: x * next(t)[0])
holding("items_in_circles", lambda: itertools.cycle([2.0]), lambda: itertools.cycle([3.0]), lambda x, t: x * next(t))
holding("a_reversed_list", lambda: reversed([1.0, 2.0]), lambda: reversed([1.0, 3.0]), lambda x, t: x * next(t))
holding("keys_of_a_table", lambda: {"ab": 1}.keys(), lambda: {"abc": 1}.keys(), lambda x, t: x * len(next(iter(t))))
holding("values_of_a_table", lambda: {"a": 2}.values(), lambda: {"a": 3}.values(), lambda x, t: x * next(iter(t)))
holding("items_of_a_table", lambda: {"a": 2}.items(), lambda: {"a": 3}.items(), lambda x, t: x * next(iter(t))[1])
holding(
    "an_attribute_getter",
    lambda: operator.attrgetter("first"),
    lambda: operator.attrgetter("second"),
    lambda x, t: x * t(Point(5.0)),
)
holding(
    "a_method_caller", lambda: operator.methodcaller("sin"), lambda: operator.methodcaller("cos"), lambda x, t: t(x)
)
holding("a_key_of_a_comparison", lambda: [2.0, -3.0], lambda: [2.0, -4.0], lambda x, t: x * max(t, key=abs))
holding("a_method_of_a_text", lambda: "ab".upper, lambda: "abc".upper, lambda x, t: x * len(t()))
holding("a_method_of_a_list", lambda: [1.0].append, lambda: [1.0, 2.0].append, lambda x, t: x * (1 + len(t.__self__)))
holding("a_method_of_a_class", lambda: First.times, lambda: Second.times, lambda x, t: t(None, x))
holding("a_module", lambda: operator, lambda: itertools, lambda x, t: x * len(t.__name__))
holding("a_class", lambda: First, lambda: Second, lambda x, t: x * t.value)
holding("an_exception", lambda: ValueError(2.0), lambda: ValueError(3.0), lambda x, t: x * t.args[0])
holding("a_cell", lambda: types.CellType(2.0), lambda: types.CellType(3.0), lambda x, t: x * t.cell_contents)
holding("a_generic_form", lambda: list[int], lambda: list[float], lambda x, t: x * (2 if t.__args__[0] is int else 3))
holding(
    "a_variable_of_types", lambda: typing.TypeVar("T"), lambda: typing.TypeVar("Tau"), lambda x, t: x * len(t.__name__)
)
holding(
    "a_signature",
    lambda: inspect.signature(lambda a: a),
    lambda: inspect.signature(lambda a, b: a),
    lambda x, t: x * len(t.parameters),
    register=case,
)
holding("a_property", lambda: property(lambda s: 2.0), lambda: property(lambda s: 3.0), lambda x, t: x * t.fget(None))
holding("a_static_method", lambda: staticmethod(lambda: 2.0), lambda: staticmethod(lambda: 3.0), lambda x, t: x * t())
holding(
    "a_date_of_the_wall",
    lambda: datetime.datetime(2, 1, 1),
    lambda: datetime.datetime(3, 1, 1),
    lambda x, t: x * t.year,
)


class Box2:
    kept: typing.ClassVar[list[Any]] = []

    def __init__(self, value: float) -> None:
        self.value = value
        Box2.kept.append(self)

    @property
    def reference(self) -> Any:
        return weakref.ref(self)

    @property
    def proxy(self) -> Any:
        return weakref.proxy(self)


def _advanced(iterator: Iterator[Any]) -> Iterator[Any]:
    next(iterator)
    return iterator


def _generated(first: float) -> Iterator[float]:
    yield first
    yield 5.0


@case
def a_reference_to_what_is_gone(changed: bool) -> Iterator[Any]:
    thing = Held(2.0)
    reference = weakref.ref(thing)
    if changed:
        del thing
    yield lambda x, r: x * (3 if r() is None else 2), (X, reference)
    if not changed:
        del thing


_VARIABLE = contextvars.ContextVar("_VARIABLE", default=2.0)
_LOCAL = threading.local()


def reads_a_context(x: torch.Tensor) -> torch.Tensor:
    return x * _VARIABLE.get()


@case
def a_variable_of_the_context(changed: bool) -> Iterator[Any]:
    token = _VARIABLE.set(3.0 if changed else 2.0)
    yield reads_a_context, (X,)
    _VARIABLE.reset(token)


@case
def a_variable_of_the_context_that_is_held(changed: bool) -> Iterator[Any]:
    token = _VARIABLE.set(3.0 if changed else 2.0)
    yield Calls(lambda x, variable: x * variable.get(), _VARIABLE), (X,)
    _VARIABLE.reset(token)


@case
def a_default_of_a_variable_of_the_context(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_VARIABLE", contextvars.ContextVar("_VARIABLE", default=3.0), when=changed):
        yield reads_a_context, (X,)


def writes_a_context(x: torch.Tensor) -> torch.Tensor:
    before = _VARIABLE.get()
    token = _VARIABLE.set(before + 1)
    result = x * _VARIABLE.get()
    _VARIABLE.reset(token)
    return result * _VARIABLE.get()


@case
def a_variable_of_the_context_that_is_written(changed: bool) -> Iterator[Any]:
    token = _VARIABLE.set(3.0 if changed else 2.0)
    yield writes_a_context, (X,)
    _VARIABLE.reset(token)


def reads_a_thread_s(x: torch.Tensor) -> torch.Tensor:
    return x * _LOCAL.value


@case
def a_value_of_the_thread(changed: bool) -> Iterator[Any]:
    _LOCAL.value = 3.0 if changed else 2.0
    yield reads_a_thread_s, (X,)


# Functions of the library and of modules that are rebound.


def _rebound(name: str, owner: Any, attribute: str, other: Any, ask: Callable[..., Any]) -> None:
    def another(changed: bool) -> Iterator[Any]:
        with patched(owner, attribute, other, when=changed):
            yield ask, (X,)

    another.__name__ = f"rebound_{name}"
    more(another)


_rebound("operator_mul", operator, "mul", operator.add, lambda x: operator.mul(x, 2))
_rebound(
    "dataclasses_replace",
    dataclasses,
    "replace",
    lambda v, **k: Setting(3.0),
    lambda x: x * dataclasses.replace(Setting(), value=2.0).value,
)
_rebound(
    "inspect_isfunction",
    inspect,
    "isfunction",
    lambda v: False,
    lambda x: x * (2 if inspect.isfunction(_rebound) else 3),
)
_rebound("builtin_max", _HERE, "max", min, lambda x: x * max(2.0, 3.0))
_rebound("builtin_range", _HERE, "range", lambda n: (1,) * (n + 1), lambda x: x * sum([1 for _ in range(2)]))
_rebound(
    "builtin_isinstance", _HERE, "isinstance", lambda a, b: False, lambda x: x * (2 if isinstance(2.0, float) else 3)
)
_rebound("builtin_super", _HERE, "getattr", lambda a, b: 3.0, lambda x: x * getattr(First, "value"))  # noqa: B009
_rebound("builtin_print", _HERE, "sorted", lambda v: [3.0], lambda x: x * sorted([2.0])[0])


# What a process knows of itself.


@case
def subclasses_that_are_counted(changed: bool) -> Iterator[Any]:
    class Root: ...

    kept = [type("Leaf", (Root,), {}) for _ in range(2 if changed else 1)]
    yield lambda x: x * (1 + len(Root.__subclasses__())), (X,)
    kept.clear()


@case
def a_module_that_is_imported(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_UNUSED", None, when=False):
        if changed:
            sys.modules["hazard_imported"] = types.ModuleType("hazard_imported")
        yield lambda x: x * (3 if "hazard_imported" in sys.modules else 2), (X,)
        sys.modules.pop("hazard_imported", None)


@case
def a_module_that_is_found_by_name(changed: bool) -> Iterator[Any]:
    module = types.ModuleType("hazard_found")
    module.value = 3.0 if changed else 2.0  # type: ignore[attr-defined]
    sys.modules["hazard_found"] = module
    yield lambda x: x * importlib.import_module("hazard_found").value, (X,)
    sys.modules.pop("hazard_found", None)


@unsaid
def a_name_among_globals_by_text(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_FACTOR", 3.0, when=changed):
        yield lambda x: x * globals()["_FACTOR"], (X,)


@case
def attributes_that_are_counted(changed: bool) -> Iterator[Any]:
    thing = Held(2.0)
    if changed:
        thing.more = 1.0  # type: ignore[attr-defined]
    yield lambda x, thing: x * len(vars(thing)), (X, thing)


@case
def a_class_that_has_an_attribute(changed: bool) -> Iterator[Any]:
    with patched(First, "more", 1.0, when=changed):
        yield lambda x, thing: x * (3 if hasattr(thing, "more") else 2), (X, First())


@case
def what_can_be_called(changed: bool) -> Iterator[Any]:
    with patched(First, "__call__", lambda self: None, when=changed):
        yield lambda x, thing: x * (3 if callable(thing) else 2), (X, First())


@case
def a_number_that_is_registered(changed: bool) -> Iterator[Any]:
    class Local: ...

    if changed:
        numbers.Number.register(Local)
    yield lambda x, thing: x * (3 if isinstance(thing, numbers.Number) else 2), (X, Local())


@case
def an_abstract_method_that_is_implemented(changed: bool) -> Iterator[Any]:
    class Root(abc.ABC):
        @abc.abstractmethod
        def value(self) -> float: ...

    class Leaf(Root):
        def value(self) -> float:
            return 3.0 if changed else 2.0

    yield lambda x, thing: x * thing.value(), (X, Leaf())


@case
def a_documentation_that_is_read(changed: bool) -> Iterator[Any]:
    with patched(First, "__doc__", "abc", when=changed):
        yield lambda x: x * (1 + len(First.__doc__ or "")), (X,)


@case
def code_that_is_asked(changed: bool) -> Iterator[Any]:
    function = (lambda a, b, c: a) if changed else (lambda a, b: a)
    yield lambda x, f: x * f.__code__.co_argcount, (X, function)


@case
def a_wrapped_function(changed: bool) -> Iterator[Any]:
    def wraps(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return function(x)

        return wrapper

    yield wraps((lambda x: x * 3) if changed else (lambda x: x * 2)), (X,)


@case
def what_inspect_unwraps(changed: bool) -> Iterator[Any]:
    def outer(x: float) -> float:
        return x

    outer.__wrapped__ = (lambda v: v * 3) if changed else (lambda v: v * 2)  # type: ignore[attr-defined]
    yield lambda x, f: x * inspect.unwrap(f)(1.0), (X, outer)


@case
def a_default_that_is_an_object(changed: bool) -> Iterator[Any]:
    def scales(x: torch.Tensor, held: Held = Held(3.0 if changed else 2.0)) -> torch.Tensor:  # noqa: B008
        return x * held.value

    yield scales, (X,)


@case
def a_default_that_is_a_list(changed: bool) -> Iterator[Any]:
    def scales(x: torch.Tensor, held: list[float] = [3.0 if changed else 2.0]) -> torch.Tensor:  # noqa: B006
        return x * held[0]

    yield scales, (X,)


@case
def an_owner_of_a_callback(changed: bool) -> Iterator[Any]:
    class Owner:
        def __init__(self, value: float) -> None:
            self.value = value

        def times(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.value

    yield Calls(lambda x, callback: callback(x), Owner(3.0 if changed else 2.0).times), (X,)


@case
def an_object_deep_in_others(changed: bool) -> Iterator[Any]:
    deep = {"a": [Held(1.0), (Held(3.0 if changed else 2.0),)]}
    yield Calls(lambda x, deep: x * deep["a"][1][0].value, deep), (X,)


@case
def an_object_that_is_not_itself(changed: bool) -> Iterator[Any]:
    one = Held(2.0)
    yield Calls(lambda x, pair: x * (2 if pair[0] is pair[1] else 3), (one, Held(2.0) if changed else one)), (X,)


class Raises(Exception):
    factor = 2.0


def catches(x: torch.Tensor) -> torch.Tensor:
    try:
        raise Raises("ab")
    except Raises as error:
        return x * error.factor * len(error.args)


@case
def what_an_exception_says(changed: bool) -> Iterator[Any]:
    with patched(Raises, "factor", 3.0, when=changed):
        yield catches, (X,)


def catches_by_class(x: torch.Tensor) -> torch.Tensor:
    try:
        raise KeyError
    except CAUGHT:
        return x * 2
    except Exception:  # noqa: BLE001
        return x * 3


CAUGHT: Any = KeyError


@case
def a_class_of_exceptions_that_is_caught(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "CAUGHT", ValueError, when=changed):
        yield catches_by_class, (X,)


@contextlib.contextmanager
def scaling() -> Iterator[float]:
    yield 2.0


@contextlib.contextmanager
def scaling_more() -> Iterator[float]:
    yield 3.0


def enters_a_generator(x: torch.Tensor) -> torch.Tensor:
    with scaling() as factor:
        return x * factor


@case
def another_context_of_a_generator(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "scaling", scaling_more, when=changed):
        yield enters_a_generator, (X,)


@case
def another_function_of_a_context(changed: bool) -> Iterator[Any]:
    with patched(scaling, "__wrapped__", scaling_more.__wrapped__, when=changed):  # type: ignore[attr-defined]
        yield lambda x: x * next(scaling.__wrapped__()), (X,)  # type: ignore[attr-defined]


def yields_numbers() -> Iterator[float]:
    yield from NUMBERS


NUMBERS = (1.0, 2.0)


@case
def numbers_of_a_generator(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "NUMBERS", (1.0, 3.0), when=changed):
        yield lambda x: x * sum(list(yields_numbers())), (X,)
