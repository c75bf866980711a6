"""The settings, state and machine of a request as facts, and the facts in which two requests differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from google.protobuf.message import Message

from compilefarm.cli.listing import body_of
from compilefarm.cli.messages import name_of_target, plain, words
from compilefarm.v1.graph_pb2 import Graph, NamedValue
from compilefarm.v1.job_pb2 import Job

# In words; several where a list of names is meant, whose order says nothing.
Fact = str | list[str]

# Of a part of a request; there are more in none that a client makes.
_MAX_FACTS = 20_000
_MAX_DIFFERENCES = 50
_MAX_NAMES = 200
_NOT_SET = "not set"


def facts_of(value: Any, *, name: str = "") -> dict[str, Fact]:
    """Returns the facts of a field of a job by name, at most 20,000: the fields of a message, the elements of a list by
    their name or position.

    Args:
        value: of the field.
        name: the beginning of all names.
    """
    found: dict[str, Fact] = {}
    for fact_name, fact in islice(_facts(value, name=name), _MAX_FACTS):
        # The request of a stranger may say a thing twice.
        found[f"{fact_name} (again, {len(found)})" if fact_name in found else fact_name] = fact
    return found


def fact_words(fact: Fact | None) -> str:
    """Returns a fact as text; None is a fact that is not set."""
    if fact is None:
        return _NOT_SET
    if isinstance(fact, str):
        return fact
    more = f" and {len(fact) - _MAX_NAMES} more" if len(fact) > _MAX_NAMES else ""
    return ", ".join(fact[:_MAX_NAMES]) + more if fact else "none"


def differences(first: Job, second: Job, *, part: str) -> list[str]:
    """Returns how two jobs differ in a part of their keys whose digests differ, in words: "name: first / second"."""
    ours, theirs = getattr(first, part), getattr(second, part)
    found: Iterator[str]
    if isinstance(ours, Graph):
        found = _graph_differences(ours, theirs)
    else:
        found = _fact_differences(facts_of(ours, name=part), facts_of(theirs, name=part))
    shown = list(islice(found, _MAX_DIFFERENCES))
    left = sum(1 for _ in found)
    return [*shown, f"and {left} more"] if left else shown or ["in what a listing does not tell apart"]


def _facts(value: Any, *, name: str) -> Iterator[tuple[str, Fact]]:
    if isinstance(value, Message):
        for field in value.DESCRIPTOR.fields:
            if not field.has_presence or value.HasField(field.name):
                yield from _facts(getattr(value, field.name), name=_join(name, field.name))
    elif isinstance(value, str):
        yield name, plain(value)
    elif not isinstance(value, Sequence):
        yield name, words(value)
    elif value and isinstance(value[0], str):
        yield name, [plain(item) for item in value]
    else:
        for position, item in enumerate(value):
            if isinstance(item, NamedValue):
                yield _join(name, plain(item.name)), words(item.value)
            else:
                yield f"{name}[{position}]", words(item)


def _join(name: str, below: str) -> str:
    return f"{name}.{below}" if name else below


def _fact_differences(ours: Mapping[str, Fact], theirs: Mapping[str, Fact]) -> Iterator[str]:
    for name in dict.fromkeys((*ours, *theirs)):
        first, second = ours.get(name), theirs.get(name)
        if first == second:
            continue
        if isinstance(first, list) and isinstance(second, list):
            yield f"{name}: only {_without(first, second)} / only {_without(second, first)}"
        else:
            yield f"{name}: {fact_words(first)} / {fact_words(second)}"


def _without(names: list[str], others: list[str]) -> str:
    left_out = set(others)
    return fact_words([name for name in names if name not in left_out])


def _graph_differences(ours: Graph, theirs: Graph) -> Iterator[str]:
    if len(ours.nodes) != len(theirs.nodes):
        yield f"nodes: {len(ours.nodes)} / {len(theirs.nodes)}"
    # Numbers shift behind an inserted node, so that what comes after the first difference says little.
    for first, second in zip_longest(body_of(ours), body_of(theirs)):
        if first != second:
            yield f"first line that differs: {(first or _NOT_SET).strip()} / {(second or _NOT_SET).strip()}"
            break
    first_calls, second_calls = Counter(_calls(ours)), Counter(_calls(theirs))
    for name in dict.fromkeys((*first_calls, *second_calls)):
        if first_calls[name] != second_calls[name]:
            yield f"calls of {name}: {first_calls[name]} / {second_calls[name]}"


def _calls(graph: Graph) -> Iterator[str]:
    yield from (name_of_target(node.call) for node in graph.nodes if node.HasField("call"))
    for subgraph in graph.subgraphs:
        yield from _calls(subgraph)
