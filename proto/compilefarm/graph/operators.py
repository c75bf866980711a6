"""Operators that the dispatcher knows: torch's own, and those of other libraries.

Beside `targets`, `symbols`, `tracing` and `settings` this module touches private names of torch;
tests/graph/test_private_torch.py says what broke when a release moves one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._library import simple_registry  # torch/_library/simple_registry.py

from compilefarm.v1.environment_pb2 import CustomOperator

# Namespaces of operators that torch itself registers and that compute on tensors.
_NAMESPACES_OF_TORCH = frozenset({"aten", "mkldnn", "onednn", "prims", "quantized"})


def is_of_torch(name: str) -> bool:
    """Whether an operator is one of torch's that compute on tensors, by its name ("aten::add.Tensor")."""
    return name.partition("::")[0] in _NAMESPACES_OF_TORCH


def base_of(name: str) -> str:
    """The name of an operator without namespace and overload."""
    return name.partition("::")[2].partition(".")[0]


def find_operator(name: str, *, is_overload: bool) -> Callable[..., Any] | None:
    """An operator that is registered; None if there is none of that name.

    Args:
        name: with its namespace, and with the overload if it has one that is not the default.
        is_overload: whether one overload is meant, or all that share the name.
    """
    # Looked up before it is asked for: torch.ops makes namespaces of whatever it is asked for, and keeps them.
    known = operators_of_torch() if is_of_torch(name) else _registered()
    if name not in (known if is_overload else _without_overloads(known)):
        return None
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    target: Callable[..., Any] = getattr(getattr(torch.ops, namespace), base)
    return getattr(target, overload or "default") if is_overload else target


def import_operators(modules: Iterable[str]) -> frozenset[str]:
    """Imports modules and returns the names under which they made operators callable, with and without overloads.

    Raises:
        ImportError: one cannot be imported.
    """
    before = _registered()
    for module in modules:
        importlib.import_module(module)
    # Parts of torch that a module imports may register operators, too, but torch's namespaces are there before.
    namespaces = {name.partition("::")[0] for name in before}
    made = frozenset(name for name in _registered() - before if name.partition("::")[0] not in namespaces)
    return made | _without_overloads(made)


def describe_operators(names: Iterable[str]) -> list[CustomOperator]:
    """What decides how the compiler treats operators of other libraries than torch, sorted.

    Args:
        names: operators; a name without an overload stands for all overloads.
    """
    wanted = frozenset(names)
    overloads = sorted(name for name in _registered() if {name, name.partition(".")[0]} & wanted)
    return [_describe(name) for name in overloads]


def _describe(name: str) -> CustomOperator:
    overload = find_operator(name, is_overload=True)
    assert overload is not None
    # torch/_library/fake_impl.py keeps where a fake implementation was registered, as "file:line".
    kernel = simple_registry.singleton.find(name.partition(".")[0]).fake_impl.kernel
    source = Path(kernel.source.rpartition(":")[0]) if kernel is not None else None
    return CustomOperator(
        name=name,
        schema=str(overload._schema),  # type: ignore[attr-defined]  # torch/_ops.py: OpOverload
        source_digest=_digest_of_file(source) if source is not None and source.is_file() else "",
    )


@functools.cache
def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _registered() -> frozenset[str]:
    # torch/csrc/jit/python/init.cpp: the names of all operators that the dispatcher knows, as "aten::add.Tensor".
    return frozenset(torch._C._dispatch_get_all_op_names())


@functools.cache
def operators_of_torch() -> frozenset[str]:
    """Names of the operators of torch that compute on tensors, with their overloads."""
    return frozenset(filter(is_of_torch, _registered()))


@functools.cache
def _without_overloads(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)
