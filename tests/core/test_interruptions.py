"""What a program's own signal handlers raise is told from what goes wrong in the code that they arrive in."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from compilefarm.core.interruptions import find_interruption, raise_interruption


class TimeLimit(Exception):
    """As task queues raise one."""


def end(*_: Any) -> None:
    raise TimeLimit


class Limit:
    def end(self, number: int, frame: FrameType | None) -> None:
        end(number, frame)

    __call__ = end


@pytest.fixture(
    params=[end, Limit().end, Limit(), functools.partial(functools.partial(end, 1), 2)],
    ids=["function", "method", "object", "partial"],
)
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_is_found_whatever_became_of_it(interrupt: Callable[[], None]) -> None:
    with pytest.raises(TimeLimit) as caught:
        interrupt()
    damaged = ValueError("damaged")
    damaged.__cause__ = caught.value
    assert find_interruption(caught.value) is caught.value
    assert find_interruption(damaged) is caught.value
    with pytest.raises(TimeLimit):
        raise_interruption(damaged)


def test_what_goes_wrong_after_one_is_no_interruption(interrupt: Callable[[], None]) -> None:
    with pytest.raises(TimeLimit) as caught:
        interrupt()
    defect = KeyError("while it was handled")
    defect.__context__ = caught.value
    assert find_interruption(defect) is None


def test_causes_that_go_round_have_an_end(interrupt: Callable[[], None]) -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert find_interruption(first) is None
    raise_interruption(first)
