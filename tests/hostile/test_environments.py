"""Environments that say the same in many ways: jobs of one caller that each have their own keep nobody waiting."""

from __future__ import annotations

import pytest

from compilefarm.core.environments import cpu_differences
from compilefarm.core.pool import WorkerView
from compilefarm.service import forecast as forecasts
from compilefarm.service import matching
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.durations import Durations
from compilefarm.service.forecast import forecast
from compilefarm.service.matching import Requirement, Roster
from compilefarm.service.testing import ENVIRONMENT, ManualClock, active_job
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Cpu, Environment


def worded(number: int) -> Environment:
    """What a worker has, and something besides that decides nothing where there is no GPU."""
    environment = Environment()
    environment.CopyFrom(ENVIRONMENT)
    environment.triton = f"triton {number}"
    return environment


def roster() -> Roster:
    state = WorkerState.WORKER_STATE_IDLE
    return Roster([WorkerView(name=f"worker-{number}", state=state, environment=ENVIRONMENT) for number in range(2)])


def waiting(jobs: int) -> list[ActiveJob]:
    return [active_job(str(number), clock=ManualClock(), environment=worded(number)) for number in range(jobs)]


def test_jobs_for_the_same_workers_are_foreseen_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was held against each: 900 such jobs took 1.8 s, again every second."""
    chosen: list[object] = []

    class Choice(forecasts._Choice):
        def __init__(self, *given: object, **named: object) -> None:
            chosen.append(self)
            super().__init__(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(forecasts, "_Choice", Choice)
    outlooks = forecast(waiting(50), roster=roster(), leases=[], durations=Durations(), now_seconds=0.0)
    assert [each.jobs_ahead for each in outlooks.values()] == list(range(50))
    assert len(chosen) == 1


def test_what_is_known_of_jobs_that_wait_is_not_forgotten_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_MOST_MATCHES", 50)
    known, looked_at = roster(), list[str]()
    find = known._find_match
    monkeypatch.setattr(known, "_find_match", lambda wanted: looked_at.append(wanted.triton) or find(wanted))  # type: ignore[func-returns-value]
    lines = [Requirement(worded(number)) for number in range(20)]
    for number in range(200):
        # As with each change of the queue, and with each question of a plan.
        for line in lines:
            known.fitting(line)
        known.fitting(Requirement(worded(1000 + number)))
    assert len(looked_at) == 220


def test_a_large_environment_is_known_by_its_digest() -> None:
    large = worded(0)
    large.cpu.instruction_sets.extend(f"set-{number}" for number in range(1000))
    assert len(Requirement(large).content) == 32
    assert Requirement(large).content != Requirement(worded(0)).content


def test_no_more_of_a_version_is_read_than_versions_have() -> None:
    offered = Cpu(architecture="x86_64", glibc="2.36")
    assert cpu_differences(wanted=Cpu(architecture="x86_64", glibc="2.36" + ".9" * 10**6), offered=offered) == []
    assert cpu_differences(wanted=Cpu(architecture="x86_64", glibc="2.35.9.9"), offered=offered) != []
