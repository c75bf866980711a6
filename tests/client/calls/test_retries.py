"""The retry policy by itself: what pods and prewarming have in common, and in what they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from compilefarm.client.clock import Budget
from compilefarm.client.retries import INTERACTIVE, UNHURRIED, Retries, RetryPolicy
from compilefarm.client.testing import FakeClock
from compilefarm.core.errors import Busy, Draining, FarmError, InvalidRequest, NotStored, Silent, WorkerLost


class Asking:
    """A farm that refuses a number of times, and what was waited for before each further question."""

    def __init__(self, policy: RetryPolicy, *refusals: FarmError, seconds: float = math.inf) -> None:
        self.clock = FakeClock()
        self.lasting_seconds = 0.0
        self.is_accepted = False
        self._refusals = list(refusals)
        budget = Budget(seconds, clock=self.clock)
        self._retries = Retries(policy, budget=budget, wait=self.clock.wait)

    def waits(self) -> Sequence[float]:
        assert self._retries.ask(self._question, is_accepted=lambda: self.is_accepted) == "answer"
        return self.clock.waits

    def _question(self) -> str:
        self.clock.seconds += self.lasting_seconds
        if self._refusals:
            raise self._refusals.pop(0)
        return "answer"


@pytest.mark.parametrize("policy", [INTERACTIVE, UNHURRIED])
@pytest.mark.parametrize("error", [Silent("nothing"), InvalidRequest("node 1")])
def test_what_would_fail_again_is_not_asked_again(policy: RetryPolicy, error: FarmError) -> None:
    asking = Asking(policy, error)
    with pytest.raises(type(error)):
        asking.waits()
    assert asking.clock.waits == []


@pytest.mark.parametrize(("policy", "waits"), [(INTERACTIVE, [1, 3]), (UNHURRIED, [1, 2, 4, 8, 15, 30])])
def test_an_outage_is_waited_for_and_then_ends_the_questions(policy: RetryPolicy, waits: Sequence[float]) -> None:
    assert Asking(policy, *[WorkerLost("gone")] * len(waits)).waits() == waits
    asking = Asking(policy, *[WorkerLost("gone")] * (len(waits) + 1))
    with pytest.raises(WorkerLost):
        asking.waits()


@pytest.mark.parametrize("policy", [INTERACTIVE, UNHURRIED])
def test_a_busy_farm_says_when_to_come_back_and_is_never_asked_in_a_tight_loop(policy: RetryPolicy) -> None:
    assert Asking(policy, Busy("full", retry_after_seconds=7.0), Busy("full", retry_after_seconds=0.0)).waits() == [
        7,
        0.5,
    ]


def test_a_farm_that_had_accepted_the_job_has_the_time_of_a_restart() -> None:
    asking = Asking(INTERACTIVE, *[Draining("going down")] * 5)
    asking.is_accepted = True
    assert asking.waits() == [1, 2, 4, 8, 15]


def test_prewarming_survives_more_than_one_outage() -> None:
    asking = Asking(UNHURRIED, *[Draining("going down")] * 20)
    asking.lasting_seconds = 31.0
    assert asking.waits() == [1] * 20


def test_nothing_is_waited_for_beyond_the_budget() -> None:
    asking = Asking(INTERACTIVE, NotStored("a blob is gone"), NotStored("a blob is gone"), seconds=3.5)
    with pytest.raises(NotStored):
        asking.waits()
    assert asking.clock.waits == [1]
    late = Asking(INTERACTIVE, Busy("full", retry_after_seconds=1.0, estimated_wait_seconds=9.0), seconds=5.0)
    with pytest.raises(Busy):
        late.waits()
