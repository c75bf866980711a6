"""Libraries that a process imports for a request, because it calls their operators.

A request says of an operator which library it comes from, in which version, and which modules register it. None of this
is believed: the library has to be on the farm's list and installed in that version, a module has to be one that the
installed library has and that calls what registers operators with the name of this one, and what is registered then has
to be described as the request describes it. The texts of a request choose among modules that are known; they are never
imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Set

from compilefarm.core.distributions import Distribution, find_distribution, modules_of
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.libraries import is_listed, name_of
from compilefarm.core.sources import path_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.operators import describe_operators, home_of_function, whole_packets
from compilefarm.graph.registrations import may_register
from compilefarm.graph.replacements import find_replacement
from compilefarm.graph.targets import OF_LIBRARIES, get_target
from compilefarm.v1.environment_pb2 import CustomOperator, LibraryVersion
from compilefarm.v1.graph_pb2 import Call, Graph


def installed_libraries(names: Iterable[str]) -> list[LibraryVersion]:
    """Those of a list of distributions that are installed, sorted by name; nothing is imported."""
    found = filter(None, map(find_distribution, names))
    return sorted(
        (LibraryVersion(name=each.name, version=each.version) for each in found), key=lambda library: library.name
    )


def import_libraries_of(
    operators: Collection[CustomOperator], *, graph: Graph, known: Set[str], libraries: Collection[str]
) -> Set[str]:
    """Imports what registers the operators of a request, once nothing else is left to say against it.

    Args:
        operators: as the request describes them.
        graph: calls them.
        known: names of the operators of other libraries that it may call besides.
        libraries: names of the distributions that may be imported.

    Returns:
        The names under which they may be called, with their overloads, and without where all are described.

    Raises:
        InvalidRequest: a library is not on the list, or is not here as the request says it; or the graph calls what no
            graph may call, or not all of the operators.
    """
    modules = [(module, each) for each in operators for module in _modules_of(each, libraries=libraries)]
    _check_calls(graph, operators, known=known)
    for module, operator in modules:
        _import(module, operator)
    replacement = find_replacement() if operators else None
    if replacement is not None:
        raise InvalidRequest(f"the libraries of the request put something of their own in the place of {replacement}")
    for operator in operators:
        _check_described(operator)
    return whole_packets(operator.name for operator in operators)


def _check_calls(graph: Graph, operators: Collection[CustomOperator], *, known: Set[str]) -> None:
    """Passes if a graph calls these operators, and nothing else but what it may call of torch."""
    described = {operator.name: {operator.name, operator.name.partition(".")[0]} for operator in operators}
    names = frozenset[str]().union(*described.values())
    called = {(call.kind, call.target) for call in _calls_of(graph)}
    for kind, target in called:
        if kind not in OF_LIBRARIES or target not in names:
            get_target(kind, name=target, operators=known)
    targets = {target for _, target in called}
    for operator, as_called in described.items():
        if targets.isdisjoint(as_called):
            raise InvalidRequest(f"operator {operator} is described, and the graph does not call it")


def _calls_of(graph: Graph) -> Iterator[Call]:
    yield from (node.call for node in graph.nodes if node.HasField("call"))
    for subgraph in graph.subgraphs:
        yield from _calls_of(subgraph)


def _modules_of(operator: CustomOperator, *, libraries: Collection[str]) -> Iterator[str]:
    """The modules that are to be imported, by the names that the installed library has for them."""
    distribution = _get_distribution(operator, libraries=libraries)
    if list(operator.modules) != sorted(set(operator.modules)):
        raise InvalidRequest(f"the modules that register {operator.name} are not sorted, or one occurs twice")
    known = {module: module for module in modules_of(distribution.name)}
    for named in operator.modules:
        module = known.get(named)
        if module is None or not _registers(module, operator, distribution):
            raise InvalidRequest(
                f"{named[:200]!r} is said to register the operator {operator.name}: {operator.library} has no module"
                " that does and is called so"
            )
        yield module


def _get_distribution(operator: CustomOperator, *, libraries: Collection[str]) -> Distribution:
    name = name_of(operator.library)
    if not is_listed(name, libraries=libraries):
        raise InvalidRequest(f"operator {operator.name} of {operator.library or 'no library'} is none that is taken")
    found = find_distribution(name)
    if found is None or operator.library != f"{found.name} {found.version}":
        theirs = f"{found.name} {found.version}" if found is not None else "not"
        raise InvalidRequest(f"operator {operator.name} of {operator.library} is wanted, {theirs} is installed")
    return found


def _registers(module: str, operator: CustomOperator, distribution: Distribution) -> bool:
    if home_of_function(operator.name) is not None:
        return module == home_of_function(operator.name)
    file = modules_of(distribution.name)[module].resolve()
    # Another module of that name may come before it in the path of imports.
    return path_of(module) == file and may_register(operator.name, file)


def _import(module: str, operator: CustomOperator) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        # A library does whatever it likes when it is imported, and fails in many ways.
        raise InvalidRequest(
            f"the operator {operator.name} is not served: {operator.library} cannot be imported at the worker:"
            f" {type(error).__name__}: {error}"
        ) from error


def _check_described(wanted: CustomOperator) -> None:
    try:
        found = {operator.name: operator for operator in describe_operators([wanted.name])}
    except Bypass as bypass:
        raise InvalidRequest(f"{wanted.library}: {bypass}") from bypass
    if found.get(wanted.name) != wanted:
        raise InvalidRequest(
            f"operator {wanted.name} of {wanted.library} is another one at the worker, although both have that version:"
            " files of the library, or what else registers the operator, differ"
        )
