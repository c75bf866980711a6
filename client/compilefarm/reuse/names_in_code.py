"""What code refers to by name: globals and what hangs on them, and the module whose globals they are."""

from __future__ import annotations

import collections
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def chains_of(code: types.CodeType) -> Iterator[str]:
    """Globals that code names, with the attributes that it looks up on each ("torch.nn.functional.gelu"), and those
    that functions within it name."""
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTES and chain:
            chain.append(instruction.argval)
            continue
        if chain:
            yield ".".join(chain)
        chain = [instruction.argval] if instruction.opname in _GLOBALS else []
    if chain:
        yield ".".join(chain)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from chains_of(constant)


def module_name_of(code: types.CodeType) -> str:
    """The module that code is of; empty if it is of none that can be imported, or of several of one file."""
    if is_frozen(code):
        return code.co_filename.removeprefix("<frozen ").removesuffix(">")
    module = inspect.getmodule(code)
    if module is None or sys.modules.get(module.__name__) is not module:
        return ""
    return "" if getattr(module, "__file__", None) in _files_of_several(len(sys.modules)) else module.__name__


def has_globals_of_its_module(code: types.CodeType, scope: Mapping[str, object]) -> bool:
    """Whether the globals of a function are those of the module that its code is of."""
    module = sys.modules.get(str(scope.get("__name__")))
    if module is None or vars(module) is not scope:
        return False
    file = scope.get("__file__")
    if code.co_filename == file:
        return file not in _files_of_several(len(sys.modules))
    return module_name_of(code) == module.__name__


def require_own_globals(code: types.CodeType, scope: Mapping[str, object]) -> str | None:
    """Returns why what code names cannot be looked up in its module; None if it can."""
    return None if has_globals_of_its_module(code, scope) else f"{code.co_qualname}, whose globals are of no module"


def is_frozen(code: types.CodeType) -> bool:
    """Whether code is of a module that the interpreter brings along, whose version is compared."""
    return code.co_filename.startswith("<frozen ")


def root_of(module: str) -> str:
    """The package that a module is in, by name."""
    return module.partition(".")[0]


@functools.lru_cache(maxsize=1)
def _files_of_several(_: int) -> frozenset[str]:
    """Files of which there are several modules; found anew whenever there are more modules."""
    modules = {id(each): each for each in list(sys.modules.values()) if isinstance(each, types.ModuleType)}
    files = collections.Counter(vars(each).get("__file__") for each in modules.values())
    return frozenset(file for file, count in files.items() if count > 1 and file is not None)
