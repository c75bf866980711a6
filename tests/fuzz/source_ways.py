"""Ways by which a number comes to where a source uses it: the code that uses it stays as it is when the number changes.

`source_ways.txt` has them. After the name of a way stands what is put in the place of a number; its code is appended to
the module. What has a name alone is done to a class: all floating-point results of a method are multiplied by the
number. N is the way's number in the module, VALUE the number, VALUE0 what it was.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence, Set
from pathlib import Path
from random import Random
from typing import Any

from .source_changes import numbers_within, replaced

_TEXT = Path(__file__).with_suffix(".txt").read_text()
_WAYS = re.findall(r"^# ([^:\n]+)(?:: (.+))?\n((?:(?!#).*\n)+)", _TEXT, re.MULTILINE)
_OF_NUMBERS = [each for each in _WAYS if each[1]]
_OF_CLASSES = [each for each in _WAYS if not each[1]]
_TIMES = """
def _tN(r):
    import torch
    if isinstance(r, torch.Tensor) and r.is_floating_point(): return r * VALUE
    return type(r)(map(_tN, r)) if type(r) in (tuple, list) else r
_wN = CLASS.METHOD
"""
_FACTOR = 1.25

# A source, and variants of it in each of which one number is another one, each with the way of the number.
Base = tuple[str, list[tuple[str, str]]]


def with_ways_of_numbers(source: str, lines: Collection[int], random: Random, *, count: int) -> Base | None:
    """A source whose numbers come to some of its lines by other ways. None if it has no numbers there."""
    numbers = sorted(numbers_within(source, lines), key=lambda each: (each.lineno, each.col_offset), reverse=True)
    places = sorted(random.sample(range(len(numbers)), min(count, len(numbers))))
    ends = list[tuple[str, str, Any]]()
    for place, (way, expression, code) in zip(places, random.sample(_OF_NUMBERS, len(places)), strict=True):
        node = numbers[place]
        source = replaced(source, node, f"({_numbered(expression, len(ends), node.value)})")
        ends.append((way, _numbered(code, len(ends), node.value), node.value))
    return _base(source, ends, random) if ends else None


def with_changed_class(source: str, lines: Set[int], random: Random) -> Base | None:
    """A source that does something to one of its classes. None if none has a method at some of its lines."""
    methods = sorted(_methods_within(source, lines))
    if not methods:
        return None
    (name, method), (way, _, code) = random.choice(methods), random.choice(_OF_CLASSES)
    code = _numbered((_TIMES + code).replace("CLASS", name).replace("METHOD", method), 0, _FACTOR)
    base, variants = _base(source, [(f"{way} ({name}.{method})", code, _FACTOR)], random)
    return base, [*variants, (source, f"without {way} ({name}.{method})")]


def _base(source: str, ends: Sequence[tuple[str, str, Any]], random: Random) -> Base:
    def whole(changed: int | None) -> str:
        values = [_another(value, random) if number == changed else value for number, (*_, value) in enumerate(ends)]
        codes = [code.replace("VALUE", repr(value)) for (_, code, _), value in zip(ends, values, strict=True)]
        return "\n".join([source, *codes])

    return whole(None), [(whole(number), way) for number, (way, _, _) in enumerate(ends)]


def _numbered(text: str, number: int, value: Any) -> str:
    return re.sub(r"_([A-Za-z]|made_)N\b", rf"_\g<1>{number}", text).replace("VALUE0", repr(value))


def _another(value: Any, random: Random) -> Any:
    if isinstance(value, bool):
        return not value
    return random.choice((value + 1, value * 2 + 1) if isinstance(value, int) else (value + 0.75, value * 3 + 1.5))


def _methods_within(source: str, lines: Set[int]) -> set[tuple[str, str]]:
    """Classes of a module, and those of their methods that run at some lines."""
    kinds = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    methods = ((kind, each) for kind in kinds for each in kind.body if isinstance(each, ast.FunctionDef))
    return {
        (kind.name, each.name)
        for kind, each in methods
        if not each.name.startswith("__") and not each.decorator_list and lines & set(_lines_of(each))
    }


def _lines_of(function: ast.FunctionDef) -> range:
    return range(function.body[0].lineno, (function.end_lineno or 0) + 1)
