"""Descriptions of what stands in collections: members of sets, whose order each process has for itself, and keys."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import name_of, shortened
from compilefarm.reuse.refusals import Unsayable

# The order of a mapping that is empty.
NO_KEYS = "[]"
_ALIKE = "a set of objects that are described alike"
_PLAIN_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
# So many entries a mapping of its own class may have that is looked through.
_MANY = 1000


def describe_members_of_set(describer: Describes, members: Iterable[Any], describe: Callable[[Any], str]) -> list[str]:
    """Descriptions of what a set holds, in an order that says nothing unless that of this process counts."""
    described = _described(describer, members, describe)
    return described if describer.orders else sorted(described)


def describe_mapping(describer: Describes, mapping: Mapping[Any, Any]) -> str:
    """Describes what a mapping holds; empty if it is one of its own class that may make what it is asked for."""
    try:
        if type(mapping) not in _PLAIN_MAPPINGS and len(mapping) >= _MANY:
            return ""
        items = list(mapping.items())
    except Exception as error:  # noqa: BLE001 - a mapping of its own class may raise anything
        raise_interruption(error)
        # Whoever asks it meets the same: pydantic has such for what cannot be made.
        return f"{name_of(type(mapping))}, which raises {type(error).__name__}"
    return f"mapping({','.join(f'{describer.member(key)}:{describer.member(value)}' for key, value in items)})"


def ranks_of_members(describer: Describes, members: Any) -> list[int]:
    """Which one each member of a set is, in an order that is the same in each process, unless that of this process
    counts.

    Raises:
        Unsayable: members are described alike, or it is no plain set.
    """
    if type(members) not in (set, frozenset):
        raise Unsayable(f"members of a {type(members).__qualname__}, which has an order of its own")
    texts = _described(describer, members, describer.member)
    if describer.orders:
        return list(range(len(texts)))
    ranks = {text: rank for rank, text in enumerate(sorted(texts))}
    if len(ranks) < len(texts):
        raise Unsayable(_ALIKE)
    return [ranks[text] for text in texts]


def describe_order(describer: Describes, keys: list[Any]) -> str:
    """Describes keys in their order, which decides what popitem finds and no guard tells."""
    if not keys:
        return NO_KEYS
    if all(type(each) is int for each in keys):
        # Hooks are numbered, by how many the process has had: only which comes before which is the same elsewhere.
        ranks = {key: rank for rank, key in enumerate(sorted(keys))}
        return str([ranks[each] for each in keys])
    return shortened(describer.all_members(keys))


def _described(describer: Describes, members: Iterable[Any], describe: Callable[[Any], str]) -> list[str]:
    members = list(members)
    # How a circle is described depends on where it is entered: not at the member that this process has first.
    for kind in sorted({type(each) for each in members}, key=name_of):
        describer.of_class(kind)
    before = describer.alike.last_numbers()
    described = [describe(each) for each in members]
    # They were numbered in an order that another process does not have.
    if not describer.orders and describer.alike.are_several_since(before):
        raise Unsayable(_ALIKE)
    return described
