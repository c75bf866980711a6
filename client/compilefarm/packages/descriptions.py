"""Stable descriptions of values: texts that are equal in two processes if the values behave alike there.

Functions are described by name, digest of their code, defaults and closures; classes by name; other objects by what
they hold. Modules and tensors are numbered as they come. What has no such description is refused, by name.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from compilefarm.core.code_digests import digest_of_code
from compilefarm.torch_internals.dynamo_frames import ADDRESS_OF_WRAPPED
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

PRIMITIVES = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, EllipsisType, NotImplementedType}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_BUILTINS = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)
# Objects within objects.
_DEEPEST = 12
# Values that one description may have: beyond them an object holds more than settings.
_MOST_VALUES = 20_000
_LONGEST = 200
# Py_TPFLAGS_HEAPTYPE, which types of the interpreter and of its extensions in C do not have.
_HEAP_TYPE = 1 << 9


class Undescribable(Exception):
    """A value has no description that another process would find equal; the message says which and why."""


class Describer:
    """Describes values of one process, and numbers the modules and tensors among them.

    Args:
        refer: returns what stands for a module or tensor.
    """

    def __init__(self, refer: Callable[[torch.nn.Module | torch.Tensor], str]) -> None:
        self._refer = refer
        self._described: dict[int, str] = {}
        # Addresses are names as long as what lies there is alive.
        self._alive: list[object] = []
        self._values = 0

    def describe(self, value: object, *, depth: int = 0) -> str:
        """The description of a value.

        Raises:
            Undescribable: it has none.
        """
        if type(value) in PRIMITIVES:
            return _short(f"{type(value).__name__} {value!r}")
        known = self._described.get(id(value))
        if known is not None:
            return known
        self._count(value, depth=depth)
        return self._once(value, lambda: self._describe(value, depth=depth + 1), cycle=f"cycle {depth}")

    def describe_loosely(self, value: object) -> str:
        """The description of a value that a function of a class holds: by the name of its type if it is neither code
        nor a constant. Whether a trace depends on it is for guards to say."""
        match value:
            case FunctionType():
                return self._once(value, lambda: _describe_function(value, self.describe_loosely))
            case property():
                return f"property {[self.describe_loosely(each) for each in (value.fget, value.fset, value.fdel)]}"
            case staticmethod() | classmethod():
                return f"{type(value).__name__} {self.describe_loosely(value.__func__)}"
            case functools.cached_property():
                return f"cached_property {self.describe_loosely(value.func)}"
            case tuple() | list():
                return _short(f"{type(value).__name__} {[self.describe_loosely(each) for each in value]}")
            case _ if type(value) in PRIMITIVES or isinstance(value, type | enum.Enum | BuiltinFunctionType):
                return self.describe(value)
        wrapped = getattr(value, "__wrapped__", None)
        inner = self.describe_loosely(wrapped) if isinstance(wrapped, FunctionType) else ""
        return f"a {name_of(type(value))} {inner}"

    def _once(self, value: object, describe: Callable[[], str], *, cycle: str = "cycle") -> str:
        known = self._described.get(id(value))
        if known is None:
            # What refers to itself is described there by how deep it began.
            self._described[id(value)] = cycle
            self._alive.append(value)
            known = self._described[id(value)] = _short(describe())
        return known

    def _count(self, value: object, *, depth: int) -> None:
        self._values += 1
        if depth > _DEEPEST or self._values > _MOST_VALUES:
            raise Undescribable(f"a {name_of(type(value))} holds, or is held by, more values than can be compared")

    def _describe(self, value: Any, *, depth: int) -> str:
        inner = functools.partial(self.describe, depth=depth)
        match value:
            case FunctionType():
                return _describe_function(value, inner)
            case MethodType():
                return f"method {inner(value.__func__)} of {inner(value.__self__)}"
            case functools.partial():
                return f"partial {inner(value.func)} {inner(value.args)} {inner(value.keywords)}"
            case torch.nn.Module() | torch.Tensor():
                return self._refer(value)
            case type():
                return f"class {name_of(value)}"
            case ModuleType():
                return f"module {value.__name__}"
            case enum.Enum():
                return f"{name_of(type(value))}.{value.name}"
            case property():
                return f"property {[inner(each) for each in (value.fget, value.fset, value.fdel)]}"
            case staticmethod() | classmethod():
                return f"{type(value).__name__} {inner(value.__func__)}"
            case tuple() | list() | set() | frozenset() | dict():
                return _describe_container(value, inner)
            case int() | float() | complex() | str() | bytes():
                base = next(base for base in (int, float, complex, str, bytes) if isinstance(value, base))
                return f"{name_of(type(value))} {base.__repr__(value)}"
            case logging.Logger():
                return f"logger {value.name}"
            case _ if isinstance(value, _OPERATORS):
                return f"operator {value}"
            case _ if isinstance(value, _BUILTINS):
                return _describe_builtin(value, inner)
        return _describe_object(value, inner)


def is_data(value: object) -> bool:
    """Whether a value holds constants alone, so that its description tells all of it: none of code tells what that
    reads."""
    if type(value) is dict:
        return all(is_data(each) for pair in value.items() for each in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return type(value) in (tuple, list, set, frozenset) and all(map(is_data, value))
    return type(value) in PRIMITIVES


def name_of(kind: type) -> str:
    """The name of a class with that of its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe_function(function: FunctionType, inner: Callable[[object], str]) -> str:
    cells = [inner(content_of(cell)) for cell in function.__closure__ or ()]
    # Marks of Dynamo among them: torch.compiler.disable, torch._dynamo.allow_in_graph.
    own = [(name, value) for name, value in vars(function).items() if name != ADDRESS_OF_WRAPPED]
    marks = [(name, inner(value)) for name, value in own if type(value) in PRIMITIVES]
    return repr(
        (
            "function",
            function.__module__,
            function.__qualname__,
            _describe_code(function.__code__),
            [inner(value) for value in function.__defaults__ or ()],
            [(name, inner(value)) for name, value in (function.__kwdefaults__ or {}).items()],
            cells,
            marks,
        )
    )


def lies_in_torch(code: CodeType) -> bool:
    """Whether code is of one of torch's own files."""
    return code.co_filename.startswith(_TORCH)


def _describe_code(code: CodeType) -> str:
    # What torch's own files say follows from its build, which is in the key; there are hundreds of such functions.
    if lies_in_torch(code):
        return f"torch {code.co_filename.removeprefix(_TORCH)}:{code.co_firstlineno} {code.co_qualname}"
    try:
        return digest_of_code(code)
    except ValueError as error:
        raise Undescribable(f"the code of {code.co_qualname} holds {error}") from None


class _Empty:
    """The content of a cell that has none yet."""


def content_of(cell: Any) -> object:
    """What a cell of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return _Empty


def _describe_container(value: Any, inner: Callable[[object], str]) -> str:
    name = name_of(type(value))
    match value:
        case dict():
            return f"{name} {[(inner(key), inner(each)) for key, each in value.items()]}"
        case set() | frozenset():
            return f"{name} {sorted(map(inner, value))}"
    return f"{name} {[inner(each) for each in value]}"


def _describe_builtin(value: Any, inner: Callable[[object], str]) -> str:
    owner = getattr(value, "__self__", None)
    is_bound = owner is not None and not isinstance(owner, ModuleType) and not _is_function_record(owner)
    bound = f" of {inner(owner)}" if is_bound else ""
    home = getattr(value, "__module__", None) or getattr(owner, "__name__", "") or ""
    return f"builtin {home}.{value.__qualname__} {_version_of(home, what=value.__qualname__)}{bound}"


def _is_function_record(owner: object) -> bool:
    """Whether a function that pybind11 made has this in the place of an object; it says no more than the name."""
    return type(owner).__name__.startswith(("PyCapsule", "pybind11_detail_function_record"))


@functools.cache
def _version_of(module: str, *, what: str) -> str:
    """The version of the library that a compiled function is of, where that is not in the key already."""
    root = module.partition(".")[0]
    if not root or root in sys.stdlib_module_names or root == "torch":
        return ""
    version = getattr(sys.modules.get(root), "__version__", None)
    if not isinstance(version, str):
        raise Undescribable(f"{module}.{what} is compiled code of a library that says no version")
    return version


def _describe_object(value: Any, inner: Callable[[object], str]) -> str:
    kind = type(value)
    state: Mapping[str, object] | None = getattr(value, "__dict__", None)
    slots = {
        name: getattr(value, name)
        for base in kind.__mro__
        for name in _slots_of(base)
        if not name.startswith("__") and hasattr(value, name)
    }
    if (state is None and not slots) or any(map(_is_compiled, kind.__mro__[:-1])):
        raise Undescribable(f"a {name_of(kind)} has no description that other processes would find equal")
    held = [(name, inner(each)) for name, each in {**(state or {}), **slots}.items()]
    functions = [
        (name, inner(each))
        for base in kind.__mro__
        for name, each in vars(base).items()
        if isinstance(each, FunctionType) and base.__module__.partition(".")[0] not in sys.stdlib_module_names
    ]
    return f"object of {name_of(kind)} {held} {functions}"


def _is_compiled(kind: type) -> bool:
    """Whether objects of a class have a state that is none of Python's."""
    return not kind.__flags__ & _HEAP_TYPE or type(kind).__name__ == "pybind11_type"


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
