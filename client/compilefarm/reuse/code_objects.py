"""Code objects as data and back, and their digests."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, EllipsisType, MethodType
from typing import Any

import torch

from compilefarm.core import code_digests
from compilefarm.core.dynamo_packages import ClassConstant, CodeRecord, Constant, NamespaceConstant, TorchConstant
from compilefarm.reuse.names_in_code import value_at
from compilefarm.reuse.refusals import Differs, Unsayable

_FIELDS = tuple(CodeRecord.__dataclass_fields__)
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, EllipsisType})
_OF_TORCH = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
    "size": torch.Size,
}
_DIMENSION = re.compile(r"\d+")


def record_of(code: CodeType) -> CodeRecord:
    """Returns a code object as data.

    Raises:
        Unsayable: it holds a constant that has no form as data.
    """
    values = {name: getattr(code, f"co_{name}") for name in _FIELDS}
    values["consts"] = constant_of(code.co_consts)
    return CodeRecord(**values)


def code_of(record: CodeRecord) -> CodeType:
    """Returns the code object; a new one at every call, since Dynamo tells them apart."""
    values = {f"co_{name}": getattr(record, name) for name in _FIELDS}
    values["co_consts"] = tuple(value_of(constant) for constant in record.consts)
    return _template().__code__.replace(**values)


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those of the functions that are written in it, outermost first."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_within(constant)


class DescribedCodes:
    """Code that descriptions tell. It remembers it: one is for one moment."""

    def __init__(self) -> None:
        self._outer: list[CodeType] = []
        self._within: set[int] = set()

    def add(self, code: CodeType) -> None:
        """Adds the code of a function, with that of functions within it."""
        self._outer.append(code)

    def __contains__(self, code: CodeType) -> bool:
        # Only who records asks.
        while self._outer:
            self._within |= {id(each) for each in codes_within(self._outer.pop())}
        return id(code) in self._within


def renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """Returns a code object that has other names of globals."""
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names))


def lines_of(code: CodeType) -> str:
    """Says which lines a code object and those within it have, counted from its first one."""
    lines = [
        (begin, None if line is None else line - code.co_firstlineno)
        for each in codes_within(code)
        for begin, _, line in each.co_lines()
    ]
    return str(lines)


def moved(code: CodeType, *, source: str, to: str, by: int) -> CodeType:
    """Returns a code object, and those within it, of another file and other lines where they were of one file.

    Args:
        code: of a process in which the file has another place.
        source: that file.
        to: its place in this process.
        by: how many lines further down the code stands there.
    """
    if source == to and by == 0:
        return code
    inner = (
        moved(each, source=source, to=to, by=by) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    placed = code.replace(co_consts=tuple(inner))
    if code.co_filename != source:
        return placed
    return placed.replace(co_filename=to, co_firstlineno=max(code.co_firstlineno + by, 0))


def constant_of(value: Any) -> Constant:
    """Returns a value as a constant.

    Raises:
        Unsayable: it is none.
    """
    kind = type(value)
    if kind in _PLAIN:
        constant: Constant = value
        return constant
    if kind is tuple:
        return tuple(constant_of(each) for each in value)
    if kind is frozenset:
        return frozenset(constant_of(each) for each in value)
    if kind is CodeType:
        return record_of(value)
    for name, of_torch in _OF_TORCH.items():
        if kind is of_torch:
            return TorchConstant(kind=name, text=str(value))
    if kind is dict:
        return _namespace_constant(value)
    if isinstance(value, type):
        return _class_constant(value)
    if kind is MethodType and isinstance(value.__self__, type):
        return _method_constant(value)
    raise Unsayable(f"a constant of type {kind.__module__}.{kind.__qualname__}")


def value_of(constant: Constant) -> Any:
    """Returns the value of a constant."""
    if type(constant) in _PLAIN:
        return constant
    if isinstance(constant, CodeRecord):
        return code_of(constant)
    if isinstance(constant, TorchConstant):
        return _value_of_torch(constant)
    if isinstance(constant, ClassConstant):
        return _class_of(constant)
    if isinstance(constant, NamespaceConstant):
        return _namespace_of(constant)
    if isinstance(constant, tuple):
        return tuple(value_of(each) for each in constant)
    if isinstance(constant, frozenset):
        return frozenset(value_of(each) for each in constant)
    return constant


def _namespace_constant(value: dict[str, Any]) -> NamespaceConstant:
    """The global variables of a function that generated code makes."""
    module = value.get("__name__")
    if not isinstance(module, str) or getattr(sys.modules.get(module), "__dict__", None) is not value:
        raise Unsayable("a dictionary in the generated code that holds no module's global variables")
    return NamespaceConstant(module=module)


def _namespace_of(constant: NamespaceConstant) -> dict[str, Any]:
    module = sys.modules.get(constant.module)
    if module is None:
        raise Differs(f"the module {constant.module} is not imported")
    return vars(module)


def _class_constant(value: type) -> ClassConstant:
    if value_at(value.__module__, value.__qualname__) is not value:
        raise Unsayable(f"the class {value.__module__}.{value.__qualname__}, which is not at its place")
    return ClassConstant(module=value.__module__, qualified_name=value.__qualname__)


def _method_constant(method: MethodType) -> ClassConstant:
    """A method of a class as such, NamedTuple._make."""
    assert isinstance(method.__self__, type)
    owner = _class_constant(method.__self__)
    name = f"{owner.qualified_name}.{method.__name__}"
    if type(found := value_at(owner.module, name)) is not classmethod or found.__func__ is not method.__func__:
        raise Unsayable(f"the method {owner.module}.{name}, which is not at its place")
    return ClassConstant(module=owner.module, qualified_name=name)


def _class_of(constant: ClassConstant) -> Any:
    value = value_at(constant.module, constant.qualified_name)
    if isinstance(value, type):
        return value
    owner = value_at(constant.module, constant.qualified_name.rpartition(".")[0])
    if type(value) is classmethod and isinstance(owner, type):
        return value.__get__(None, owner)
    raise Differs(f"there is no class {constant.module}.{constant.qualified_name}")


def _value_of_torch(constant: TorchConstant) -> Any:
    if constant.kind == "device":
        return torch.device(constant.text)
    if constant.kind == "size":
        return torch.Size(map(int, _DIMENSION.findall(constant.text)))
    value = getattr(torch, constant.text.removeprefix("torch."), None)
    if type(value) is not _OF_TORCH.get(constant.kind):
        raise Differs(f"torch has no {constant.text}")
    return value


def text_of(value: Any) -> str:
    """Returns a constant as text that is equal for equal values of equal types, in every process.

    Raises:
        Unsayable: it is none.
    """
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is tuple:
        return f"({','.join(text_of(each) for each in value)})"
    if kind is frozenset:
        return f"{{{','.join(sorted(text_of(each) for each in value))}}}"
    if kind is CodeType:
        return f"code:{digest_of_code(value)}"
    if kind in _OF_TORCH.values():
        return f"torch:{value}"
    raise Unsayable(f"a constant of type {kind.__module__}.{kind.__qualname__}")


def digest_of_code(code: CodeType) -> str:
    """Returns a digest of what a code object does.

    Raises:
        Unsayable: it holds a constant that has no form as data.
    """
    try:
        return code_digests.digest_of_code(code)[:32]
    except ValueError as error:
        raise Unsayable(str(error)) from error


def _template() -> Callable[[], None]:
    return lambda: None
