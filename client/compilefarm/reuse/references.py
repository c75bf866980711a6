"""What inlined code refers to, found in the code and not in the guards: names of globals, and what hangs on them.

Dynamo guards most of it, and leaves out what it takes to be fixed: functions of torch, attributes of modules, methods
of classes. A second look that knows nothing of its reasons finds what was rebound.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from compilefarm.core.dynamo_packages import DependencyKind, DependencyRecord
from compilefarm.graph.operators import home_of_function, name_function
from compilefarm.reuse.code_objects import codes_within, digest_of_code
from compilefarm.reuse.description_texts import MISSING
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.names_in_code import (
    chains_of,
    function_at,
    is_frozen,
    is_module_of_a_release,
    is_module_of_python,
    is_of_a_release,
    static_attribute,
    value_at,
)
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.autograd import NUMBER_OF_FUNCTION
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket

# Builtins that Dynamo computes while it traces, whose results mean nothing in another process. The standard library
# asks for them to recognise what it has seen.
_PROCESS_BOUND = frozenset({"hash", "id"})
_ATTRIBUTES_OF_PROCESS = frozenset({"__hash__", "_base", NUMBER_OF_FUNCTION})


def references_of(
    codes: Iterable[types.CodeType], asked: Iterable[tuple[str, str]], describer: Describer
) -> Iterator[DependencyRecord]:
    """Describes what inlined code refers to by name.

    Args:
        codes: of functions.
        asked: modules and attributes that they were asked for.
        describer: of this moment.

    Raises:
        Unsayable: it asks for what differs between processes.
    """
    found = set(asked)
    for code in codes:
        name = describer.modules.name_of(code)
        chains = set(chains_of(code))
        if not is_module_of_python(name):
            _refuse_of_process(code, name, chains)
        if name:
            found |= {(name, chain) for chain in chains}
        found |= set(_imported(code))
    yield from (_reference(name, chain, describer) for name, chain in sorted(found))


def _refuse_of_process(code: types.CodeType, module: str, chains: Iterable[str]) -> None:
    """Passes if code asks for nothing that means something in one process alone, or that nothing tells.

    Raises:
        Unsayable: it does.
    """
    where = code.co_qualname
    for chain in sorted(chains):
        value = _value_at_chain(module, chain)
        if value is hash or value is id or chain in _PROCESS_BOUND:
            raise Unsayable(f"{where} calls {chain}(), which differs between processes")
    for inner in codes_within(code):
        if found := _ATTRIBUTES_OF_PROCESS.intersection(inner.co_names + inner.co_consts):
            raise Unsayable(f"{where} asks for {', '.join(sorted(found))}")
    if any(map(_goes_through_sets, codes_within(code))):
        raise Unsayable(f"{where} goes through a set, whose order differs between processes")


def _goes_through_sets(code: types.CodeType) -> bool:
    """Whether code itself does more with a set that is written in it than to look whether something is there."""
    instructions = list(dis.get_instructions(code))
    for instruction, following in pairwise(instructions):
        is_set = instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, frozenset)
        # What is done with a set that takes its members from there, the trace tells.
        if is_set and len(instruction.argval) > 1 and following.opname not in ("CONTAINS_OP", "SET_UPDATE"):
            return True
    return False


def _value_at_chain(module: str, chain: str) -> Any:
    first, *rest = chain.split(".")
    # What an evaluated text names in its own globals is told with the function.
    scope = vars(sys.modules[module]) if module else {}
    value = scope.get(first, getattr(builtins, first, None))
    for name in rest:
        if not isinstance(value, (types.ModuleType, type)):
            return None
        value = static_attribute(value, name, None)
    return value


def targets_of(graphs: Iterable[torch.fx.Graph], describer: Describer) -> Iterator[DependencyRecord]:
    """Describes the functions that graphs call, at the places that they say they are at.

    Raises:
        Unsayable: one is not there.
    """
    targets = {node.target for graph in graphs for node in graph.nodes if node.op == "call_function"}
    for target in sorted(targets, key=str):
        if isinstance(target, (OpOverload, OpOverloadPacket)):
            yield _reference("torch", f"ops.{target}", describer)
            continue
        module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        if (library := name_function(target)) is not None:
            # The farm computes it with a library of its own, of the version in the request; what else this process has
            # of that library, a trace does not ask for either.
            yield from _all_of(home_of_function(library) or "", describer)
            continue
        # Sources of a release are the same elsewhere.
        if isinstance(target, types.FunctionType) and not is_of_a_release(target):
            raise Unsayable(f"{module}.{name}, which is in the graph as it is, with all that it reads")
        if isinstance(target, types.FunctionType) and module in sys.modules and name and "<locals>" not in name:
            if describer.identity(target) != describer.identity(value_at(module, name)):
                raise Unsayable(f"{module}.{name}, which is not at its place")
            yield _reference(module, name, describer)


def _all_of(module: str, describer: Describer) -> Iterator[DependencyRecord]:
    yield from (_reference(module, name, describer) for name in sorted(vars(sys.modules[module])))


def places_of(
    code: types.CodeType, inlined: Iterable[types.CodeType], describer: Describer
) -> Iterator[DependencyRecord]:
    """Describes where traced code stands that no description has told so far.

    Args:
        code: of the frame, by which packages are looked for.
        inlined: code of functions that were traced with it.
        describer: of this moment.

    Raises:
        Unsayable: there is code that is in no class and no function that was described.
    """
    told = {id(each) for each in codes_within(code)}
    apart = list[types.CodeType]()
    for each in dict.fromkeys((code, *inlined)):
        # Functions within a function, and expressions that are made as such, come with its code.
        outermost = each.co_qualname.partition(".<locals>")[0]
        name = describer.modules.name_of(each)
        found = _code_at(name, outermost)
        if found is not None and any(inner is each for inner in codes_within(found)):
            told |= {id(inner) for inner in codes_within(found)}
            yield _record(DependencyKind.FUNCTION, name, outermost, digest_of_code(found))
        elif id(each) not in told:
            apart.append(each)
    for each in apart:
        # The interpreter brings frozen code along, and its version is compared.
        if not (id(each) in told or describer.has_described(each) or is_frozen(each)):
            yield _file_of(each, describer)


def _file_of(code: types.CodeType, describer: Describer) -> DependencyRecord:
    name = describer.modules.name_of(code)
    module = sys.modules.get(name)
    if module is None:
        raise Unsayable(f"{code.co_qualname} of {code.co_filename}, which is in no module")
    if not is_module_of_a_release(name):
        # Its file may be another by now than it was when it was imported.
        raise Unsayable(f"{code.co_qualname} of {name}, which is in no function that is known")
    return _record(DependencyKind.FILE, name, "", _digest_of_file(module))


def describe_dependency(kind: DependencyKind, module_name: str, name: str, describer: Describer) -> str:
    """Describes what stands at the place of a dependency on code in this process."""
    module = sys.modules.get(module_name)
    if module is None:
        return MISSING
    if kind is DependencyKind.FILE:
        return _digest_of_file(module)
    if kind is DependencyKind.FUNCTION:
        code = _code_at(module_name, name)
        return MISSING if code is None else digest_of_code(code)
    return describer.of_chain(vars(module), name, module=module)


def _reference(module: str, chain: str, describer: Describer) -> DependencyRecord:
    expected = describe_dependency(DependencyKind.REFERENCE, module, chain, describer)
    return _record(DependencyKind.REFERENCE, module, chain, expected)


def _imported(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """What is imported within a function, and every name of the function that the module has."""
    package = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            package = instruction.argval
            yield from (
                (package, name)
                for name in code.co_names
                if package in sys.modules and name in vars(sys.modules[package])
            )


def _record(kind: DependencyKind, module: str, name: str, expected: str) -> DependencyRecord:
    return DependencyRecord(kind=kind, module=module, name=name, expected=expected)


def _code_at(module: str, qualified_name: str) -> types.CodeType | None:
    return getattr(function_at(module, qualified_name), "__code__", None)


def _digest_of_file(module: types.ModuleType) -> str:
    path = getattr(module, "__file__", None)
    if path is None or not path.endswith(".py"):
        raise Unsayable(f"code of {module.__name__}, which has no source")
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise Unsayable(f"the source of {module.__name__}: {error}") from error
