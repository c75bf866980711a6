"""What pods find that compare programs with uncompiled graphs: believed, but not without limit."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.core.keys import key_of
from compilefarm.service.callers import Caller
from compilefarm.service.config import GatewayConfig
from compilefarm.service.reports import Reports
from compilefarm.service.roles import Role
from compilefarm.service.self_checks import SelfChecks
from compilefarm.service.testing import ManualClock, Refused, calling, sample_job, serving
from compilefarm.store.checks import KEPT_SECONDS
from compilefarm.v1.compile_service_pb2 import Outcome, SelfCheckOutcome, SelfCheckReport
from compilefarm.v1.manifest_pb2 import VERIFY_TIME_BEFORE

OFF = GatewayConfig(listen="127.0.0.1:0", verify="off")
JOB = sample_job()
KEY = key_of(JOB).text
DIFFERS = SelfCheckReport(
    key=KEY, outcome=SelfCheckOutcome.SELF_CHECK_OUTCOME_DIFFERS, detail="result 0 differs by 3\nof 1"
)
SAME = SelfCheckReport(key=KEY, outcome=SelfCheckOutcome.SELF_CHECK_OUTCOME_SAME)


async def test_a_program_that_differs_is_compiled_anew_and_checked_once_an_hour() -> None:
    async with serving(config=OFF) as gateway, calling(gateway.address) as calls:
        await calls.finish(JOB)
        await calls.report_self_checks(SAME)
        assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_HIT
        await calls.report_self_checks(DIFFERS)
        assert (await calls.status()).counters.withdrawn == 1
        finished = await calls.finish(JOB)
        assert finished.outcome == Outcome.OUTCOME_COMPILED
        assert finished.manifest.verify_time == VERIFY_TIME_BEFORE
        await calls.report_self_checks(DIFFERS)
        assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_HIT
        assert (await calls.status()).counters.withdrawn == 1


async def test_what_is_not_believed_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with serving(config=OFF, clock=clock) as gateway, calling(gateway.address) as calls:
        await calls.finish(JOB)
        for _ in range(3):
            await calls.report_self_checks(*[DIFFERS] * 100)
        assert caplog.text.count("nothing is done about it") == 1
        clock.advance(10.0)
        await calls.report_self_checks(DIFFERS)
        assert caplog.text.count("nothing is done about it") == 2


class Withdrawn:
    """Withdraws whatever it is told to."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str]] = []

    async def withdraw(self, key: str, *, namespace: str, reason: str) -> bool:
        assert "\n" not in reason
        # As a store that answers later.
        await asyncio.sleep(0)
        self.keys.append((namespace, key))
        return True


def differs(number: int) -> SelfCheckReport:
    return SelfCheckReport(
        key=f"{number:016x}-{number:064x}", outcome=DIFFERS.outcome, detail="result 0 differs by 3\nof 1"
    )


async def test_one_pod_cannot_withdraw_everything() -> None:
    withdrawn, clock = Withdrawn(), ManualClock()
    self_checks = SelfChecks(withdrawals=withdrawn, reports=Reports(), clock=clock)
    reader = Caller(account="reader", role=Role.READ)
    await self_checks.note([differs(0)], caller=reader)
    assert withdrawn.keys == []
    one, other = (Caller(account=name, role=Role.COMPILE, namespaces=["dev", "prod"]) for name in ("one", "other"))
    await self_checks.note([differs(number) for number in range(30)], caller=one)
    assert len(withdrawn.keys) == 10
    assert {namespace for namespace, _ in withdrawn.keys} == {"dev"}
    await self_checks.note([differs(0), differs(50)], caller=other)
    assert len(withdrawn.keys) == 11, "the key that one had withdrawn has had its turn"
    clock.advance(3601)
    await self_checks.note([differs(0)], caller=one)
    assert len(withdrawn.keys) == 11, "what was compiled and checked on its word"
    await self_checks.note([differs(0)], caller=other)
    assert len(withdrawn.keys) == 12
    clock.advance(KEPT_SECONDS)
    await self_checks.note([differs(0)], caller=one)
    assert len(withdrawn.keys) == 13


async def test_many_reports_at_a_time_withdraw_no_more_than_one_after_the_other() -> None:
    withdrawn = Withdrawn()
    self_checks = SelfChecks(withdrawals=withdrawn, reports=Reports(), clock=ManualClock())
    one = Caller(account="one", role=Role.COMPILE)
    await asyncio.gather(*(self_checks.note([differs(number % 30)], caller=one) for number in range(60)))
    assert len(withdrawn.keys) == len(set(withdrawn.keys)) == 10


@pytest.mark.parametrize(
    "check",
    [
        SelfCheckReport(),
        SelfCheckReport(key="no key", outcome=SelfCheckOutcome.SELF_CHECK_OUTCOME_SAME),
        SelfCheckReport(key=KEY, outcome=99),  # type: ignore[arg-type]  # of a later release
        SelfCheckReport(key=KEY, outcome=SelfCheckOutcome.SELF_CHECK_OUTCOME_SKIPPED, detail="x" * 301),
    ],
)
async def test_what_cannot_be_is_refused_as_a_whole(check: SelfCheckReport) -> None:
    async with serving(config=OFF) as gateway, calling(gateway.address) as calls:
        await calls.finish(JOB)
        with pytest.raises(Refused, match="self check"):
            await calls.report_self_checks(DIFFERS, check)
        assert (await calls.finish(JOB)).outcome == Outcome.OUTCOME_HIT
