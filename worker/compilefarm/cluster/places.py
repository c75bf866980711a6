"""Places for workers: what nodes of the cluster have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compilefarm.cluster.connection import node_resources

Resources = Mapping[str, float]


def has_place(nodes: Iterable[Resources], wanted: Resources) -> bool:
    """Whether a worker fits on one of some nodes, if nothing else is there."""
    return any(all(node.get(kind, 0) >= amount for kind, amount in wanted.items()) for node in nodes)


def missing_place(wanted: Resources) -> str:
    """What a worker waits for that has no place."""
    nodes = node_resources()
    why = "all are taken" if has_place(nodes, wanted) else "none is large enough, so one has to be added"
    has = _listed(nodes, wanted)
    return f"waits for a node that has {_words(wanted)} to spare; what nodes have in all, used or not: {has}; {why}"


def _listed(nodes: Iterable[Resources], wanted: Resources) -> str:
    each = [_words({kind: node.get(kind, 0) for kind in wanted}) for node in nodes]
    return "; ".join(sorted(set(each))) or "none"


def _words(resources: Resources) -> str:
    return ", ".join(f"{kind} {amount:g}" for kind, amount in resources.items())
