"""Descriptions of classes, by all that their own and inherited attributes do."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import collections.abc
import enum
import inspect
from collections.abc import Iterator

from torch.autograd.function import BackwardCFunction

from compilefarm.reuse.called_members import BOOKKEEPING, called_members
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import name_of, shortened
from compilefarm.reuse.names_in_code import is_of_a_release
from compilefarm.reuse.value_descriptions import OF_MEMBERS
from compilefarm.torch_internals.autograd import NUMBER_OF_FUNCTION

# Py_TPFLAGS_HEAPTYPE
_HEAP_TYPE = 1 << 9
# Where a member of an enumeration has its value, and an enumeration its members by their values.
_VALUE, _BY_VALUE = "_value_", "_value2member_map_"
# Classes whose own descriptions tell of which abstract classes they are. torch imports networkx where it partitions
# graphs, which processes that reuse never do, and networkx registers one of its classes.
_TELL_THEMSELVES = frozenset({"networkx.utils.configs.Config"})


def describe_class(describer: Describes, kind: type) -> str:
    """Describes a class.

    Raises:
        Unsayable: something that it holds rests on more than can be told.
    """
    digests = [describer.of_own_members(each) for each in kind.__mro__ if each is not object]
    digests.append(_called_of(describer, kind))
    if type(kind) is not type:
        digests += [_own_metaclass(describer, each) for each in inspect.getmro(type(kind)) if not is_of_a_release(each)]
    # What keeps a class from having instances can be set later.
    digests += sorted(vars(kind).get("__abstractmethods__", ())) if kind is not type else ()
    if isinstance(kind, abc.ABCMeta):
        # Classes that were registered are instances of it, too.
        digests += sorted({name_of(each) for each in registered_with(kind)} - _TELL_THEMSELVES)
    if any(name_of(each) in _TELL_THEMSELVES for each in kind.__mro__):
        digests += [name for name in collections.abc.__all__ if issubclass(kind, getattr(collections.abc, name))]
    digests += [each.__name__ for each in kind.__mro__]
    return f"class:{name_of(kind)}:{type(kind).__qualname__}:{shortened(chr(10).join(digests))}"


def describe_own_members(describer: Describes, kind: type) -> str:
    """Describes what a class has that it does not inherit, and what it says of itself."""
    if not kind.__flags__ & _HEAP_TYPE:  # what C defines cannot be patched
        return name_of(kind)
    named = dict(vars(kind))
    if issubclass(kind, enum.Flag):
        named[_BY_VALUE] = {key: each for key, each in named[_BY_VALUE].items() if not _is_combined(key, each)}
    if issubclass(kind, BackwardCFunction):
        # Which number it has in this process, no code may ask for that is traced (references.py).
        named.pop(NUMBER_OF_FUNCTION, None)
    members = [f"{name}={describer.member(named[name])}" for name in sorted(named.keys() - BOOKKEEPING)]
    text = "\n".join([*members, *describer.annotations.said_of_itself(kind)])
    return f"{name_of(kind)}:{shortened(text)}"


def registered_with(kind: type) -> Iterator[type]:
    """Classes that were registered as subclasses of an abstract class, or of one of its own."""
    found = (reference() for reference in _abc._get_dump(kind)[0]) if isinstance(kind, abc.ABCMeta) else ()
    yield from (each for each in found if each is not None)
    subclasses: list[type] = type.__subclasses__(kind)
    for inner in subclasses:
        yield from registered_with(inner)


def _own_metaclass(describer: Describes, kind: type) -> str:
    # What a class has of its metaclass, Dynamo takes for fixed.
    values = [value for name, value in sorted(vars(kind).items()) if name not in BOOKKEEPING]
    return f"{describer.of_own_members(kind)}:{describer.of_calls.of_content_alone(values)}"


def _called_of(describer: Describes, kind: type) -> str:
    """Describes what objects of a class have that Dynamo calls and does not trace, with what that reads of it."""
    called = called_members(kind)
    return describer.of_calls.of_content_alone(called) if called else ""


def _is_combined(key: object, member: enum.Flag) -> bool:
    """Whether a member of an enumeration of flags was made of others when somebody asked for it, and holds nothing."""
    own = vars(member)
    return own.keys() <= OF_MEMBERS and type(key) is int and own.get(_VALUE) == key
