"""Operators that the dispatcher knows: torch's own, and those of other libraries."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.core.digests import digest_of as digest_of_bytes
from compilefarm.core.distributions import Distribution, distribution_of
from compilefarm.core.sources import UnknownSource, digest_of
from compilefarm.graph import collectives
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.registrations import check_kernels, registered_functions, registering_modules
from compilefarm.torch_internals.operators import (
    OpOverload,
    OpOverloadPacket,
    register_further_operators,
    register_quantized_operators,
    registered_names,
    schema_of,
)
from compilefarm.torch_internals.process_groups import register_collectives
from compilefarm.v1.environment_pb2 import CustomOperator

# Of models that were quantized by way of torch.export (PT2E): torch registers its operators in Python, when asked.
_QUANTIZED = "quantized_decomposed"
# Namespaces of operators that torch itself registers and that compute on tensors.
NAMESPACES_OF_TORCH = frozenset({"aten", "mkldnn", "onednn", "prims", "quantized", _QUANTIZED}) | collectives.NAMESPACES
# Functions that compute on tensors and that Dynamo may leave in graphs (torch/_dynamo/decorators.py:
# _allow_in_graph_einops), with the module that defines each.
_FUNCTIONS = {
    **dict.fromkeys((f"einops::{name}" for name in ("rearrange", "reduce", "repeat", "einsum")), "einops.einops"),
    **dict.fromkeys((f"einops::{name}" for name in ("pack", "unpack")), "einops.packing"),
}


def is_of_torch(name: str) -> bool:
    """Whether an operator is one of torch's that compute on tensors, by its name ("aten::add.Tensor")."""
    return name.partition("::")[0] in NAMESPACES_OF_TORCH


def base_of(name: str) -> str:
    """The name of an operator without namespace and overload."""
    return name.partition("::")[2].partition(".")[0]


def named_arguments(schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call by their names in a schema; what is left out, to have its default, is not among them."""
    names = (declared.name for declared in schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def find_operator(name: str, *, is_overload: bool) -> Callable[..., Any] | None:
    """An operator that is registered; None if there is none of that name.

    Args:
        name: with its namespace, and with the overload if it has one that is not the default.
        is_overload: whether one overload is meant, or all that share the name.
    """
    # Looked up before it is asked for: torch.ops makes namespaces of whatever it is asked for, and keeps them.
    namespace, _, rest = name.partition("::")
    known = _operators_of_torch(namespace) if is_of_torch(name) else registered_names()
    if name not in (known if is_overload else _without_overloads(known)):
        return None
    if collectives.is_collective(name):
        register_collectives()
    base, _, overload = rest.partition(".")
    # A kernel may be registered for an operator that nobody has defined.
    target: Callable[..., Any] | None = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(target, overload or "default", None) if is_overload else target


def overloads_of(packet: Any) -> list[Any]:
    """The overloads of an operator that share its name, without those on texts and lists that TorchScript alone has."""
    # torch/_ops.py: OpOverloadPacket
    overloads = (getattr(packet, name) for name in packet.overloads())
    return [overload for overload in overloads if find_operator(overload.name(), is_overload=True) is not None]


def may_write(overload: Any) -> bool:
    """Whether an overload of an operator writes to what it is called with."""
    return bool(schema_of(overload).is_mutable)


def takes_text(target: object, argument: int | str) -> bool:
    """Whether an operator takes text as an argument, by its position or name, rather than a device of that name."""
    if isinstance(target, OpOverloadPacket):
        return any(takes_text(getattr(target, overload), argument) for overload in target.overloads())
    if not isinstance(target, OpOverload):
        return False
    declared = schema_of(target).arguments
    found = [each for position, each in enumerate(declared) if argument in (position, each.name)]
    # torch/csrc/jit/frontend/schema_type_parser.cpp: "str" and "str?", as Python shows them
    return any(str(each.type) in ("str", "Optional[str]") for each in found)


def import_operators(modules: Collection[str]) -> frozenset[str]:
    """Imports modules and returns the names under which they made operators callable, with and without overloads, and
    those of functions that Dynamo admits in graphs.

    Raises:
        ImportError: one cannot be imported.
    """
    before = registered_names()
    for module in modules:
        importlib.import_module(module)
    functions = {name for name in _FUNCTIONS if name.partition("::")[0] in modules}
    # Parts of torch that a module imports may register operators, too, but torch's namespaces are there before.
    namespaces = {name.partition("::")[0] for name in before}
    made = frozenset(name for name in registered_names() - before if name.partition("::")[0] not in namespaces)
    return made | _without_overloads(made) | functions


def name_function(target: object) -> str | None:
    """The name of a function of another library that Dynamo admits in graphs; None if it is none of these."""
    module = getattr(target, "__module__", None)
    for name, home in _FUNCTIONS.items():
        if module == home and getattr(sys.modules.get(home), base_of(name), None) is target:
            return name
    return None


def find_function(name: str) -> Callable[..., Any] | None:
    """The function that `name_function` calls so; None if there is none, or its library was not imported."""
    home = sys.modules.get(_FUNCTIONS.get(name, ""))
    function: Callable[..., Any] | None = getattr(home, base_of(name), None)
    return function


def home_of_function(name: str) -> str | None:
    """The module that defines a function which Dynamo admits in graphs ("einops::reduce"); None of operators."""
    return _FUNCTIONS.get(name)


def whole_packets(names: Iterable[str]) -> frozenset[str]:
    """These names of overloads and functions, with those that overloads share where all of them are among these."""
    given = frozenset(names)
    missing = {name.partition(".")[0] for name in registered_names() - given}
    return given | {name.partition(".")[0] for name in given} - missing


def describe_operators(names: Iterable[str]) -> list[CustomOperator]:
    """What decides how the compiler treats operators of other libraries than torch, sorted.

    Args:
        names: operators; a name without an overload stands for all overloads.

    Raises:
        Bypass: of one it cannot be said.
    """
    wanted = frozenset(names)
    overloads = (name for name in registered_names() if {name, name.partition(".")[0]} & wanted)
    functions = (name for name in _FUNCTIONS if name in wanted)
    return [_describe_or_bypass(name) for name in sorted((*overloads, *functions))]


def describable(names: Iterable[str]) -> frozenset[str]:
    """Those operators of which `describe_operators` can say it. Pods that call others do not ask a farm."""
    found = set()
    for name in names:
        with contextlib.suppress(Bypass):
            describe_operators([name])
            found.add(name)
    return frozenset(found)


def _describe_or_bypass(name: str) -> CustomOperator:
    try:
        return _describe(name) if name not in _FUNCTIONS else _describe_function(name)
    except UnknownSource as error:
        raise Bypass("unknown_operator_source", f"what the operator {name} does cannot be said: {error}") from error


def _describe(name: str) -> CustomOperator:
    overload: Any = find_operator(name, is_overload=True)
    if overload is None:
        raise UnknownSource("kernels are registered for it, and nobody has defined it")
    modules = registering_modules(overload)
    distribution = distribution_of(modules)
    check_kernels(overload, are_known=distribution is not None, has_modules=bool(modules))
    schema = str(schema_of(overload))
    return _operator(name, schema, distribution, functions=registered_functions(overload), modules=modules)


def _describe_function(name: str) -> CustomOperator:
    library = name.partition("::")[0]
    schema = f"{library} {importlib.metadata.version(library)}"
    described = _operator(name, schema, distribution_of([library]), functions=[find_function(name)], modules=())
    described.modules.append(_FUNCTIONS[name])
    return described


def _operator(
    name: str, schema: str, distribution: Distribution | None, *, functions: Iterable[object], modules: Collection[str]
) -> CustomOperator:
    # The files of a distribution are known all together; where there is none, imports are followed.
    source = digest_of(functions, modules=modules, follows_imports=distribution is None)
    return CustomOperator(
        name=name,
        schema=schema,
        source_digest=digest_of_bytes(f"{source} {distribution.digest if distribution else ''}".encode()),
        library=f"{distribution.name} {distribution.version}" if distribution else "",
        modules=sorted(modules) if distribution else (),
    )


def operators_of_torch() -> frozenset[str]:
    """Names of the operators of torch that compute on tensors, with their overloads."""
    return frozenset().union(*map(_operators_of_torch, NAMESPACES_OF_TORCH))


@functools.cache
def _operators_of_torch(namespace: str) -> frozenset[str]:
    # Without this it would depend on what was compiled before whether these are known.
    register_further_operators()
    if namespace == _QUANTIZED:
        register_quantized_operators()
    return frozenset(name for name in registered_names() if name.startswith(f"{namespace}::"))


@functools.cache
def _without_overloads(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)
