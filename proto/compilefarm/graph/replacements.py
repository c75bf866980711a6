"""What a process has put in the place of something of torch: a kernel of an operator, a decomposition, a lowering, a
pattern, a method of tensors. A local compile follows it, and a worker knows nothing of it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
import typing_extensions

from compilefarm.graph.collectives import is_collective
from compilefarm.graph.extensions import find_foreign_kernel, look_at_loaded_files
from compilefarm.graph.operators import is_of_torch
from compilefarm.graph.registrations import (
    FILES_OF_TORCH,
    has_unused_kernel,
    kernels_from_python,
    registering_files,
)
from compilefarm.torch_internals import registrations
from compilefarm.torch_internals.decompositions import (
    InductorPatterns,
    decomposition_tables,
    inductor_patterns,
    inductor_tables,
)
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet
from compilefarm.torch_internals.registrations import meta_implementations_of_torch

# From here seems to come what `torch.library.impl` registers, which torch does not use for its own.
_REGISTRAR = str(Path(FILES_OF_TORCH) / "library.py")
# What workers check beside torch, as torch would have to (weight_only_products.py, checked_kernels.py).
_CHECKS = str(Path(registrations.__file__).parent) + os.sep
# Torch decorates functions with what lies here.
_DECORATORS = frozenset(str(Path(str(module.__file__))) for module in (contextlib, typing_extensions, warnings))
_METHODS_BY_OTHER_NAMES = frozenset(
    {("__abs__", "abs"), ("__itruediv__", "__idiv__"), ("__neg__", "neg"), ("__pos__", "positive")}
)
# Methods by which Python computes with tensors: `__mul__`, `__rmul__`, `__imul__`.
_OPERATOR_METHODS = sorted(
    {f"__{kind}{name.strip('_')}__" for name in dir(operator) for kind in ("", "r", "i")}
    & (set(dir(torch.Tensor)) - {"__doc__"})
)
# Found to be torch's own; by address, and kept, so that addresses stay theirs.
_known: dict[int, object] = {}
# What tables held when all of it was torch's own, what torch's packets of operators held, and the operators in them.
_entries_seen: list[dict[Any, Any]] = []
_inductor_entries_seen: list[tuple[Any, list[Any]]] = []
_patterns_seen: list[object] = []
_packets_seen: list[dict[str, Any]] = []
_patterns = InductorPatterns()
_overloads: list[OpOverload] = []
_checked: set[str] = set()
# What was registered when none of it was from elsewhere.
_kernels_of_torch: Set[str] = frozenset()


def find_replacement() -> str | None:
    """What of torch is not torch's own in this process, for a message; None if all is."""
    return (
        _find_kernel(kernels_from_python())
        or find_foreign_kernel()
        or _find_entry()
        or _find_pattern()
        or _find_operator_method()
    )


def find_registered_replacement(registered: Set[str]) -> str | None:
    """The same, as far as it is found within a tenth of a millisecond: kernels that Python registered, entries of
    Inductor's tables, and patterns that it looks for.

    Args:
        registered: what `kernels_from_python` tells.
    """
    return _find_kernel(registered) or _find_inductor_entry() or _find_new_pattern()


def _find_inductor_entry() -> str | None:
    global _inductor_entries_seen
    # To say that a table is as it was, functions and the last target are enough: dictionaries are added to at the end.
    now = [(next(reversed(entries), None), list(entries.values())) for _, entries in inductor_tables()]
    if now == _inductor_entries_seen:
        return None
    found = _find_foreign_entry(inductor_tables())
    _inductor_entries_seen = [] if found is not None else now
    return found


def _find_new_pattern() -> str | None:
    global _patterns_seen
    now = _patterns.entries()
    if now == _patterns_seen:
        return None
    found = _find_pattern()
    _patterns_seen = [] if found is not None else now
    return found


def look_ahead() -> None:
    """Remembers of what the process has loaded by now what is never asked twice; `find_replacement` is quicker then.

    Nothing is decided, so that another thread may load and register meanwhile.
    """
    look_at_loaded_files()
    for _, entries in _tables(_overloads_in(_packets())):
        for function in list(entries.values()):
            _is_torchs(function)


def is_own_function(function: Callable[..., Any], *, name: str) -> bool:
    """Whether a function is torch's own, and that which torch has under a qualified name.

    `torch.nn.functional.cross_entropy` may be a function of a library by now, or another one of torch.
    """
    return function.__name__ == name.rpartition(".")[2] and not is_foreign(function)


def is_foreign(value: object) -> bool:
    """Whether something can be called that is neither torch's nor Python's."""
    match value:
        case FunctionType():
            return not (_is_torchs(value) or str(value.__module__).partition(".")[0] in sys.stdlib_module_names)
        case BuiltinFunctionType():
            # A function of a module, or a method of a class, such as `apply` of an autograd function.
            owner = value.__self__
            return not _is_known(value.__module__ or getattr(owner, "__module__", None) or type(owner).__module__)
        case ModuleType() | type():
            return False
    return callable(value) and not _is_known(type(value).__module__)


def _is_known(module: object) -> bool:
    return str(module).partition(".")[0] in {"torch", *sys.stdlib_module_names}


def is_own_method(name: str) -> bool:
    """Whether a method of tensors is the one that torch gives them."""
    method = vars(torch.Tensor).get(name)
    match method:
        case None:
            # It is inherited, from what cannot be written to.
            return True
        case MethodDescriptorType() | WrapperDescriptorType():
            return method.__name__ == name or (name, method.__name__) in _METHODS_BY_OTHER_NAMES
        case FunctionType():
            return _is_torchs(method)
    return False


def _find_kernel(registered: Set[str]) -> str | None:
    """A kernel of an operator of torch that Python registered from elsewhere."""
    global _kernels_of_torch
    if registered is _kernels_of_torch:
        return None
    entries = registered - _checked
    # It would take a while to ask the dispatcher about as many as torch has of its own.
    for entry in entries - meta_implementations_of_torch():
        namespace, name, key = entry.split("/") if entry.count("/") == 2 else ("", "", "")
        if is_of_torch(f"{namespace}::") and _is_replaced(f"{namespace}::{name}", key=key):
            return f"the kernel of {namespace}::{name} for {key}"
    _checked.update(entries)
    _kernels_of_torch = registered
    return None


def _is_replaced(operator: str, *, key: str) -> bool:
    files = registering_files(operator, key=key)
    if is_collective(operator) and files == [_REGISTRAR]:
        # Torch registers their gradients so (torch/distributed/_functional_collectives.py); another kernel leaves those
        # there, out of use.
        return has_unused_kernel(operator)
    return any(map(_is_foreign, files))


def _is_foreign(file: str) -> bool:
    return file.endswith(".py") and (not file.startswith((FILES_OF_TORCH, _CHECKS)) or file == _REGISTRAR)


def _find_entry() -> str | None:
    """An entry of a table of what operators of torch become while they are traced and lowered."""
    global _entries_seen
    # Equal dictionaries of the same objects are found equal ten times as fast as their entries are looked at.
    now = [
        *map(operator.attrgetter("py_kernels"), _loaded_overloads()),
        *(entries for _, entries in _lowering_tables()),
    ]
    if now == _entries_seen:
        return None
    found = _find_foreign_entry(_tables(_loaded_overloads()))
    _entries_seen = [] if found is not None else [dict(entries) for entries in now]
    return found


def _find_foreign_entry(tables: Iterable[tuple[str, dict[Any, Any]]]) -> str | None:
    for table, entries in tables:
        unknown = [(target, function) for target, function in list(entries.items()) if id(function) not in _known]
        for target, function in unknown:
            # Nearly all are torch's, which is known sooner than whose operator it is.
            if not _is_torchs(function) and _names_operator_of_torch(target):
                return f"the entry of {target} in {table}"
    return None


def _tables(overloads: list[OpOverload]) -> Iterator[tuple[str, dict[Any, Any]]]:
    yield from _lowering_tables()
    for overload in overloads:
        for key, function in list(overload.py_kernels.items()):
            if id(function) not in _known:
                yield f"its py_kernels ({key})", {overload: function}


def _lowering_tables() -> Iterator[tuple[str, dict[Any, Any]]]:
    yield from ((f"torch's decompositions ({kind})", entries) for kind, entries in decomposition_tables().items())
    yield from inductor_tables()


def _loaded_overloads() -> list[OpOverload]:
    global _packets_seen, _overloads
    packets = _packets()
    if packets != _packets_seen:
        _packets_seen = [dict(packet) for packet in packets]
        _overloads = _overloads_in(_packets_seen)
    return _overloads


def _packets() -> list[dict[str, Any]]:
    found = [value for namespace in (torch.ops.aten, torch.ops.prims) for value in list(vars(namespace).values())]
    return [vars(value) for value in found if type(value) is OpOverloadPacket]


def _overloads_in(packets: list[dict[str, Any]]) -> list[OpOverload]:
    return [each for packet in packets for each in list(packet.values()) if type(each) is OpOverload]


def _names_operator_of_torch(target: object) -> bool:
    match target:
        case OpOverload():
            return is_of_torch(f"{target.namespace}::")
        case OpOverloadPacket():
            return is_of_torch(name_of_packet(target))
    return False


def _find_operator_method() -> str | None:
    """A method by which Python computes with tensors. Graphs call Python's operators, and so does torch."""
    name = next((name for name in _OPERATOR_METHODS if not is_own_method(name)), None)
    return name and f"torch.Tensor.{name}"


def _find_pattern() -> str | None:
    """A pattern that Inductor looks for in graphs."""
    for module, entry in inductor_patterns():
        if id(entry) not in _known and not _is_torchs(entry):
            return f"a pattern in {module}"
    return None


def _is_torchs(value: object) -> bool:
    """Whether every function that a value is, wraps, binds or holds lies in a file of torch, or checks beside it."""
    if isinstance(value, FunctionType) and value.__closure__ is None and not value.__dict__:
        # Most are such, and hold nothing else.
        is_torchs = _lies_in_torch(value)
        return is_torchs and _known.setdefault(id(value), value) is value
    waiting, seen = [value], dict[int, object]()
    while waiting:
        given = waiting.pop()
        if id(given) in _known or id(given) in seen:
            continue
        seen[id(given)] = given
        if isinstance(given, FunctionType) and not _lies_in_torch(given):
            return False
        waiting += _within(given)
    _known.update(seen)
    return True


def _within(value: Any) -> list[object]:
    match value:
        case FunctionType():
            cells = [_content(cell) for cell in value.__closure__ or ()]
            return [value.__dict__.get("__wrapped__"), *filter(_is_callable, cells)]
        case functools.partial():
            return [value.func, *filter(_is_callable, (*value.args, *value.keywords.values()))]
        case tuple():
            return list(value)
    if type(value).__name__.endswith("PatternEntry"):
        return list(filter(_is_callable, vars(value).values()))
    inner = getattr(value, "__func__", None)
    return [inner] if inner is not None else []


def _is_callable(value: object) -> bool:
    return isinstance(value, FunctionType | functools.partial)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _lies_in_torch(function: Callable[..., Any]) -> bool:
    file = function.__code__.co_filename
    # Torch makes some functions of texts, which lie in no file.
    is_made = not file.endswith(".py") and str(function.__module__).partition(".")[0] in ("torch", "triton", "sympy")
    return file.startswith((FILES_OF_TORCH, _CHECKS)) or is_made or file in _DECORATORS
