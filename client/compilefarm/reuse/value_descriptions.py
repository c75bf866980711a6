"""Descriptions of values that are told by what they consist of: members of enumerations, numbers and texts of classes
of one's own, slices, ranges, patterns, matches, fields, trees."""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from compilefarm.reuse.code_objects import text_of
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import name_of
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.data_classes import kind_of_field
from compilefarm.torch_internals.pytrees import OrderedSet, TreeSpec

NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
# Of a member of an enumeration: what Python keeps there.
OF_MEMBERS = frozenset({"_inverted_", "_value_", "_name_", "__objclass__", "_sort_order_"})

# What Dynamo makes constants of, also where it guards nothing (torch/_dynamo/variables/builder.py: SourcelessBuilder),
# by what it consists of.
LOOKED_INTO: Mapping[type, Callable[[Any], Iterable[Any]]] = {
    slice: lambda each: (each.start, each.stop, each.step),
    range: lambda each: (each.start, each.stop, each.step),
    bytearray: lambda each: (bytes(each),),
    collections.deque: lambda each: (*each, each.maxlen),
    re.Match: lambda each: (each.re, each.string, each.pos, each.endpos, each.regs),
    # What kind of field it is, Dynamo takes for fixed where none of the standard library's is left.
    dataclasses.Field: lambda each: (kind_of_field(each), each.name, each.init, each.default),
    OrderedSet: list,
    TreeSpec: lambda each: (str(each),),
}


def describe_looked_into(describer: Describes, value: Any) -> str:
    """Describes a value of one of the classes that are looked into."""
    return f"{type(value).__name__}({','.join(map(describer.member, LOOKED_INTO[type(value)](value)))})"


def describe_member_of_enumeration(describer: Describes, value: enum.Enum) -> str:
    """Describes a member of an enumeration, or several flags that are combined."""
    # Flags that are combined may have no name. What is set on a member, releases before 2.12 take for fixed.
    own = [f"{name}={describer.member(each)}" for name, each in sorted(vars(value).items()) if name not in OF_MEMBERS]
    return f"enum:{describer.of_class(type(value))}:{value.name}:{describer.member(value.value)}:{','.join(own)}"


def describe_of_own_class(describer: Describes, value: Any) -> str:
    """Describes a number or text of a class of its own: what that does, and what it is equal to without it.

    Raises:
        Unsayable: it has slots, which may hold more.
    """
    kind = type(value)
    if any(vars(base).get("__slots__") for base in kind.__mro__):
        raise Unsayable(f"a number or text of the class {name_of(kind)}, which has slots")
    plain = next(base for base in NUMBERS_AND_TEXTS if isinstance(value, base))
    held = sorted(getattr(value, "__dict__", {}).items())
    own = [f"{name}={describer.of_calls.of_content_alone(each)}" for name, each in held]
    return f"{describer.of_place(value)}:{plain.__repr__(value)}:{','.join(own)}"


def describe_autocast(describer: Describes, value: torch.autocast) -> str:
    """Describes an autocast object by all that it holds, which releases before 2.12 take for fixed.

    Raises:
        Unsayable: that is not compared by what it is equal to.
    """
    held = [f"{name}={describer.constant(each)}" for name, each in sorted(vars(value).items())]
    return f"autocast:{describer.of_class(type(value))}:{','.join(held)}"


def describe_pattern(_: Describes, pattern: re.Pattern[Any]) -> str:
    """Describes a pattern.

    Raises:
        Unsayable: what it matches rests on a state of the process.
    """
    if pattern.flags & re.LOCALE:
        raise Unsayable(f"the pattern {pattern.pattern!r}, which follows the locale")
    return f"pattern:{text_of(pattern.pattern)}:{pattern.flags}"
