"""Artifacts with as many guards as there may be are no burden to others, however many ask for them, each with other
sizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core import expressions
from compilefarm.core.expressions import MAX_GUARD_TERMS
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.testing import ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import OnPhase, artifact_of
from compilefarm.store.layout import JOURNAL
from compilefarm.store.opening import open_store
from compilefarm.v1.compile_service_pb2 import Outcome, Priority
from compilefarm.v1.graph_pb2 import OPERATOR_ADD, OPERATOR_LT, Expression, Operation
from compilefarm.v1.job_pb2 import Job, Symbol

# Of a guard, and how many guards there are.
TERMS = 900
GUARDS = MAX_GUARD_TERMS // TERMS
ASKING = 12


def job_for(size: int) -> Job:
    job = sample_job()
    job.symbols.append(Symbol(lower=0))
    job.hints.append(size)
    return job


class Worker:
    """Makes artifacts with many guards, once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def make(self, assignment: Assignment, _worker: str, _on_phase: OnPhase) -> Artifact:
        await self.may.wait()
        artifact = artifact_of(assignment)
        total = Expression(operation=Operation(operator=OPERATOR_ADD, operands=[Expression(symbol=0)] * (TERMS - 3)))
        operands = [total, Expression(integer=2**40)]
        guard = Expression(operation=Operation(operator=OPERATOR_LT, operands=operands))
        artifact.manifest.guards.extend([guard] * GUARDS)
        return artifact


class Longest:
    """Counts the terms that are looked at in one round of the event loop."""

    def __init__(self) -> None:
        self.terms = 0
        self._of_round = 0

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._of_round += 1
            return function(*args, **kwargs)

        return counted

    async def watch(self) -> None:
        while True:
            self.terms, self._of_round = max(self.terms, self._of_round), 0
            await asyncio.sleep(0)


@asynccontextmanager
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Longest]:
    longest = Longest()
    with monkeypatch.context() as patched:
        # They call themselves for each term.
        patched.setattr(expressions, "evaluate", longest.counting(expressions.evaluate))
        patched.setattr(expressions, "_check", longest.counting(expressions._check))
        watch = asyncio.create_task(longest.watch())
        try:
            yield longest
        finally:
            watch.cancel()


async def test_lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, store = Worker(), await open_store(str(tmp_path))
    worker.may.set()
    async with serving(pool=ScriptedPool(worker.make), store=store) as gateway, calling(gateway.address) as calls:
        made = await calls.finish(job_for(0))
        async with watching(monkeypatch) as longest:
            found = await asyncio.gather(*(calls.lookup(job_for(size)) for size in range(1, ASKING)))
    assert found == [made.manifest] * len(found)
    assert TERMS <= longest.terms < 3 * TERMS


def entries(store: Path) -> list[Path]:
    """Those of the journal."""
    return [path for path in (store / JOURNAL).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("priority", "kept"),
    [(Priority.PRIORITY_INTERACTIVE, 0), (Priority.PRIORITY_PREWARM, ASKING)],
    ids=["now", "ahead"],
)
async def test_those_who_wait_for_one_job(
    tmp_path: Path, priority: Priority.ValueType, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, store = Worker(), await open_store(str(tmp_path))
    async with (
        serving(pool=ScriptedPool(worker.make), store=store) as gateway,
        calling(gateway.address) as calls,
        watching(monkeypatch) as longest,
    ):
        asked = [await calls.watch(job_for(size), priority=priority) for size in range(ASKING)]
        assert len(entries(tmp_path)) == kept
        worker.may.set()
        finished = await asyncio.gather(*(each.finish() for each in asked))
    outcomes = [each.outcome for each in finished]
    assert outcomes == [Outcome.OUTCOME_COMPILED, *[Outcome.OUTCOME_JOINED] * (ASKING - 1)]
    assert TERMS <= longest.terms < 3 * TERMS
    # What is done is kept no more.
    assert entries(tmp_path) == []
