"""Pods without torch: the real client, and graphs that scripted children understand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from compilefarm.client import Farm
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeGraphModule

from .programs import SIZE_BYTES, ScriptedRuntime, right_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What became of one graph in a pod.

    Attributes:
        name: of the graph.
        outcome: as in the client's records.
        reason: why it was not the farm; empty if it was.
        right: whether it is the program that was asked for; one that was compiled here is.
        seconds: until it was there.
    """

    name: str
    outcome: str
    reason: str
    right: bool
    seconds: float

    @property
    def is_from_farm(self) -> bool:
        return self.outcome in ("hit", "compiled", "joined")


def run_pod(
    address: str,
    names: Sequence[str],
    *,
    timeout_seconds: float = 60.0,
    connect_timeout_seconds: float = 5.0,
    size_bytes: int = SIZE_BYTES,
) -> list[Got]:
    """A pod from its start to its end: asks a farm for graphs, one after the other.

    Args:
        address: of the farm.
        names: of the graphs.
        timeout_seconds, connect_timeout_seconds: see Farm.
        size_bytes: of the right programs.
    """
    ledger = Ledger()
    farm = Farm(
        address,
        timeout_seconds=timeout_seconds,
        connect_timeout_seconds=connect_timeout_seconds,
        dependencies=Dependencies(runtime=ScriptedRuntime(), ledger=ledger),
    )
    with closing(farm):
        return list(_obtain(farm, names, ledger=ledger, size_bytes=size_bytes))


def _obtain(farm: Farm, names: Iterable[str], *, ledger: Ledger, size_bytes: int) -> Iterator[Got]:
    for name in names:
        started = monotonic()
        source, content, _ = farm.backend(FakeGraphModule(name), [])()
        seconds = monotonic() - started
        record = ledger.records()[-1]
        right = source == "local" or content == right_program(name, size_bytes=size_bytes)
        yield Got(name=name, outcome=str(record.outcome), reason=record.reason, right=right, seconds=seconds)
