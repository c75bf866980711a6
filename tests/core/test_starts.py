"""The phases of a start add up to the time that it took."""

from __future__ import annotations

import time

import pytest

from compilefarm.core.starts import StartClock, StartPhase, from_wire, process_began_seconds, start_words, to_wire
from compilefarm.v1 import start_pb2 as wire


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only element."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_a_child_has_measured_is_part_of_what_its_worker_waited(seconds: list[float]) -> None:
    clock = StartClock(phases=[StartPhase("sandbox", 0.5)])
    seconds[0] += 10
    clock.end_of([StartPhase("torch", 3.0), StartPhase("inductor", 5.0)], rest="process")
    seconds[0] += 1
    clock.end("process")
    assert clock.phases == (
        StartPhase("sandbox", 0.5),
        StartPhase("process", 3.0),
        StartPhase("torch", 3.0),
        StartPhase("inductor", 5.0),
    )
    assert sum(phase.seconds for phase in clock.phases) == 11.5


def test_what_was_between_is_nobodys(seconds: list[float]) -> None:
    clock = StartClock()
    seconds[0] += 60
    clock.go_on()
    seconds[0] += 2
    clock.end("cuda")
    assert clock.phases == (StartPhase("cuda", 2.0),)


def test_a_process_knows_when_it_began() -> None:
    assert 0 < time.monotonic() - process_began_seconds() < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_short_phases_are_counted_and_not_named() -> None:
    phases = [StartPhase("torch", 2.04), StartPhase("cuda", 0.04)]
    assert start_words(phases) == "2.1 s (torch 2.0 s)"
    assert start_words([]) == "0.0 s"


def test_phases_of_another_release_are_left_out() -> None:
    told = [*to_wire([StartPhase("torch", 2.0)]), wire.StartPhase(name="something new", seconds=1.0)]
    assert from_wire(told) == (StartPhase("torch", 2.0),)
