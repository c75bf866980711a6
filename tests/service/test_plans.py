"""What a request would meet, told before it is made; and what the workers of an environment are."""

from __future__ import annotations

import pytest

from compilefarm.core.keys import key_of
from compilefarm.service.testing import (
    ENVIRONMENT,
    HeldCompiles,
    ManualClock,
    Refused,
    ScriptedPool,
    calling,
    sample_job,
    serving,
)
from compilefarm.v1.compile_service_pb2 import Outcome, Prospect
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.vocabulary_pb2 import Mode, Vocabulary

OLDER = Environment(torch="2.11.0+cpu", torch_build="fedcba", python_abi=ENVIRONMENT.python_abi, cpu=ENVIRONMENT.cpu)


async def test_a_plan_tells_hits_misses_and_what_nobody_can_do_and_compiles_nothing() -> None:
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        await calls.finish(sample_job("torch.relu"))
        before = (await calls.status()).counters
        hit, miss = await calls.plan(sample_job("torch.relu")), await calls.plan(sample_job("torch.sin"))
        nobody = await calls.plan(sample_job(environment=OLDER))
        assert (await calls.status()).counters == before
    assert (hit.prospect, hit.problem) == (Prospect.PROSPECT_HIT, "")
    assert (miss.prospect, miss.problem) == (Prospect.PROSPECT_MISS, "")
    assert miss.key == key_of(sample_job("torch.sin")).text
    assert nobody.prospect == Prospect.PROSPECT_NO_WORKER
    assert "2.15.0+cpu is offered, 2.11.0+cpu is wanted" in nobody.problem
    assert len(pool.assignments) == 1


async def test_a_plan_tells_what_is_under_way() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        compile = await held.next()
        assert (await calls.plan(sample_job())).prospect == Prospect.PROSPECT_UNDER_WAY
        compile.finish()
        assert (await watch.finish()).outcome == Outcome.OUTCOME_COMPILED
        assert (await calls.plan(sample_job())).prospect == Prospect.PROSPECT_HIT


async def test_a_plan_tells_of_quarantine_and_why() -> None:
    held = HeldCompiles()
    async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        (await held.next()).die()
        (await held.next()).die()
        await watch.finish()
        plan = await calls.plan(sample_job())
    assert plan.prospect == Prospect.PROSPECT_QUARANTINED
    assert "SIGSEGV" in plan.problem


async def test_a_plan_estimates_by_what_compiles_took() -> None:
    clock, held = ManualClock(), HeldCompiles()
    async with (
        serving(pool=ScriptedPool(held), clock=clock) as gateway,
        calling(gateway.address) as calls,
    ):
        guess = (await calls.plan(sample_job("torch.sin"))).compile_seconds
        watch = await calls.watch(sample_job("torch.relu"))
        compile = await held.next()
        clock.advance(7.0)
        compile.finish()
        await watch.finish()
        assert (await calls.plan(sample_job("torch.sin"))).compile_seconds == pytest.approx(7.0)
    assert guess != pytest.approx(7.0)


async def test_an_environment_is_described_by_its_name() -> None:
    vocabularies = [Vocabulary(), Vocabulary(modes=[Mode(name="max-autotune")])]
    pool = ScriptedPool(environments=[ENVIRONMENT, OLDER], names=["default", "older"], vocabularies=vocabularies)
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        described = await calls.describe_environment("older")
        assert (described.environment, described.vocabulary) == (OLDER, vocabularies[1])
        with pytest.raises(Refused, match="no environment 'newer'; known are default, older"):
            await calls.describe_environment("newer")


async def test_an_environment_whose_workers_differ_or_have_not_started_is_not_described() -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT, OLDER, OLDER], names=["mixed", "mixed", "late"])
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="differ from each other"):
            await calls.describe_environment("mixed")
        pool.restart("worker-2")
        with pytest.raises(Refused, match="no worker of the environment late has started: it starts"):
            await calls.describe_environment("late")
