"""What a trace asks of its process, as Dynamo answers it while it traces and guards by nothing.

Attributes of modules are compared in the process that reuses the trace. Answers that nothing tells are refused: hashes
and addresses, texts with addresses in them, and classes that decide themselves what is an instance of them.
"""

from __future__ import annotations

import abc
import contextlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from compilefarm.reuse.class_descriptions import registered_with
from compilefarm.reuse.constant_results import ConstantResult
from compilefarm.reuse.description_texts import is_at_its_place, name_of
from compilefarm.reuse.names_in_code import Modules, answering_function, is_module_of_python, is_of_a_release
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.dynamo_questions import (
    watching_addresses,
    watching_builtins,
    watching_constant_results,
    watching_lines,
    watching_modules,
    watching_orders,
    watching_packages,
    watching_reads,
    watching_storages,
    watching_texts,
    watching_twice_reached,
)
from compilefarm.torch_internals.dynamo_sources import Source
from compilefarm.torch_internals.operators import holds_operators
from compilefarm.torch_internals.traced_functions import is_taken_for_constant

_HOOKS = ("__instancecheck__", "__subclasscheck__")
# What object.__repr__ says, and that of functions.
_ADDRESS = " at 0x"
_SAYS_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")


class Questions:
    """What was asked.

    Attributes:
        twice_reached: sources of objects that were taken for one with that of another source.
        packages: that were looked for, and the names of the functions that looked.
        results: that were taken for constants, with the calls that returned them.
        addresses: sources of objects whose addresses were asked for.
        orders: whether the order of a set was taken, which differs between processes.
        read: sources of all that the last attempt looked at, whether Dynamo guards it or not.
    """

    def __init__(self) -> None:
        self.twice_reached: set[Source] = set()
        self.packages: set[tuple[str, str]] = set()
        self.results: list[ConstantResult] = []
        self.addresses: set[Source] = set()
        self.orders = False
        self.read: set[Source] = set()
        self._attempt: object = None
        self._attributes: set[tuple[str, str]] = set()
        self._refusals: list[str] = []
        # As keys, code objects are compared by content, without their files.
        self._hashing: dict[int, types.CodeType] = {}

    def attributes(self) -> set[tuple[str, str]]:
        """Returns modules and the attributes that they were asked for, by name.

        Raises:
            Unsayable: something was asked whose answer means nothing in another process.
        """
        modules = Modules()
        for code in self._hashing.values():
            # The standard library asks for addresses to recognise what it has seen.
            if not is_module_of_python(modules.name_of(code)):
                raise Unsayable(f"{code.co_qualname} calls hash() or id(), which differ between processes")
        if self._refusals:
            raise Unsayable(self._refusals[0])
        for module, name in sorted(self._attributes):
            _require_plain_answer(sys.modules[module], name)
        return self._attributes

    def note_attribute(self, module: types.ModuleType, name: str) -> None:
        """Takes note of an attribute of a module."""
        if sys.modules.get(module.__name__) is module:
            self._attributes.add((module.__name__, name))
        elif holds_operators(module):
            package, _, place = module.__name__.partition(".")
            self._attributes.add((package, f"{place}.{name}"))

    def note_builtin(self, function: object, code: types.CodeType, asked: Sequence[Any]) -> None:
        """Takes note of a call of a builtin function, and of what it was asked about."""
        if function is hash or function is id:
            self._hashing[id(code)] = code
        if function is type and asked:
            self._refusals.append(f"{code.co_qualname} makes a class by type(), which runs code of its bases")
        if function is dir and any(isinstance(each, types.ModuleType) for each in asked):
            self._refusals.append(f"{code.co_qualname} lists the names of a module")
        for kind in _classes_in(asked):
            if why := _own_answer(kind):
                self._refusals.append(f"{code.co_qualname} asks for instances of {name_of(kind)}, {why}")

    def note_package(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Takes note of a package that was looked for."""
        match arguments:
            case [str(package)] | [str(package), None]:
                self.packages.add((package, function.__name__))
            case _:
                self._refusals.append(f"{function.__name__}() of a package within another")

    def note_result(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """Takes note of what a function returned, if that is taken for a constant."""
        if is_taken_for_constant(function):
            self.results.append(ConstantResult(function, arguments, keywords, result))

    def note_read(self, attempt: object, source: Source) -> None:
        """Takes note of what an attempt to trace looked at."""
        if attempt is not self._attempt:
            # What names were made for an attempt that failed is gone.
            self._attempt = attempt
            self.read.clear()
        self.read.add(source)

    def note_order(self, source: Source | None) -> None:
        """Takes note of a set that was gone through in the order of this process. One without a source is made of
        others, and described nowhere."""
        self.orders = True
        if source is None:
            self._refusals.append("the order of a set that is made while tracing, which differs between processes")

    def note_storage(self) -> None:
        """Takes note of a tensor whose storage was looked at."""
        self._refusals.append("the storage of a tensor, whose size no guard tells")

    def note_text(self, text: str) -> None:
        """Takes note of a text that was taken for a constant."""
        if _ADDRESS in text and _SAYS_ADDRESS.search(text):
            self._refusals.append("what an object says of itself, which is its address")

    def note_line(self) -> None:
        """Takes note of an exception that was asked where in a source it was raised. Code is compared without its
        lines."""
        self._refusals.append("the line of a source in which an exception was raised")

    def note_twice_reached(self, source: Source, known: Source) -> None:
        """Takes note of an object that was taken for the one at another place, which no guard tells."""
        self.twice_reached |= {source, known}


@contextlib.contextmanager
def noting_questions() -> Iterator[Questions]:
    """Collects what a trace asks meanwhile."""
    questions = Questions()
    watches = (
        watching_modules(questions.note_attribute),
        watching_builtins(questions.note_builtin),
        watching_packages(questions.note_package),
        watching_constant_results(questions.note_result),
        watching_addresses(questions.addresses.add),
        watching_orders(questions.note_order),
        watching_reads(questions.note_read),
        watching_storages(questions.note_storage),
        watching_texts(questions.note_text),
        watching_lines(questions.note_line),
        watching_twice_reached(questions.note_twice_reached),
    )
    with contextlib.ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch)
        yield questions


def _require_plain_answer(module: types.ModuleType, name: str) -> None:
    """Passes if a module has an attribute, or plainly has not.

    Raises:
        Unsayable: its own __getattr__ decides, which Dynamo calls and does not trace.
    """
    if name not in vars(module) and answering_function(module) is not None:
        raise Unsayable(f"{module.__name__} answers itself whether it has {name}")


def _classes_in(value: Any) -> Iterator[type]:
    if isinstance(value, type):
        yield value
    inner = value if isinstance(value, (tuple, list)) else getattr(value, "__args__", ())
    if isinstance(inner, (tuple, list)):
        for each in inner:
            yield from _classes_in(each)


def _own_answer(kind: type) -> str:
    for hook in _HOOKS:
        if not is_of_a_release(getattr(type(kind), hook)):
            return "which decides itself"
    if not is_of_a_release(getattr(kind, "__subclasshook__", None)):
        return "which decides itself"
    if Protocol in kind.__bases__:
        # It asks the instance for attributes, whose own __getattr__ may answer.
        return "a protocol"
    if isinstance(kind, abc.ABCMeta) and not all(map(is_at_its_place, registered_with(kind))):
        return "with which a class is registered that has no place"
    return ""
