"""Artifacts with guards: nobody gets one for other sizes than his own."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.core.pool import Artifact
from compilefarm.service.testing import HeldCompiles, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.calls import Refused
from compilefarm.service.testing.pool import HeldCompile, artifact_of
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.graph_pb2 import OPERATOR_LE, OPERATOR_LT, Expression, Operation
from compilefarm.v1.job_pb2 import Job, Symbol

LIMIT = 64


def job_for(size: int) -> Job:
    job = sample_job()
    job.symbols.append(Symbol(lower=2))
    job.hints.append(size)
    return job


def guarded(held: HeldCompile) -> Artifact:
    """What a worker makes that takes sizes up to LIMIT differently from larger ones."""
    artifact = artifact_of(held.assignment)
    size, limit = Expression(symbol=0), Expression(integer=LIMIT)
    if held.assignment.job.hints[0] <= LIMIT:
        artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_LE, operands=[size, limit]))
    else:
        artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_LT, operands=[limit, size]))
    return artifact


async def test_a_size_beyond_the_guards_gets_another_variant_and_both_serve() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        made = {}
        for size in (LIMIT, LIMIT + 1):
            asked = asyncio.create_task(calls.finish(job_for(size)))
            compile_ = await held.next()
            compile_.finish(guarded(compile_))
            finished = await asked
            assert finished.outcome == Outcome.OUTCOME_COMPILED
            made[size] = finished.manifest
        for size, variant in ((2, LIMIT), (LIMIT, LIMIT), (LIMIT + 1, LIMIT + 1), (1000, LIMIT + 1)):
            assert (await calls.finish(job_for(size))).manifest == made[variant]
            assert await calls.lookup(job_for(size)) == made[variant]
    assert made[LIMIT].key == made[LIMIT + 1].key
    assert len(held.started) == 2


async def test_who_joins_a_compile_that_turns_out_not_to_fit_gets_one_that_does() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        leader = await calls.watch(job_for(LIMIT))
        joined = [await calls.watch(job_for(size)) for size in (LIMIT - 1, LIMIT + 1, LIMIT + 2)]
        for _ in range(2):
            compile_ = await held.next()
            compile_.finish(guarded(compile_))
        first, fits, *beyond = await asyncio.gather(leader.finish(), *(watch.finish() for watch in joined))
    assert fits.manifest == first.manifest
    assert beyond[0].manifest == beyond[1].manifest != first.manifest
    assert len(held.started) == 2


async def test_a_variant_that_does_not_fit_is_a_miss() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        asked = asyncio.create_task(calls.finish(job_for(LIMIT)))
        compile_ = await held.next()
        compile_.finish(guarded(compile_))
        await asked
        with pytest.raises(Refused, match="NOT_FOUND: nothing that fits"):
            await calls.lookup(job_for(LIMIT + 1))
