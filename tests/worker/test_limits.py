from __future__ import annotations

import signal

import pytest

from compilefarm.core.errors import InvalidRequest
from compilefarm.worker.limits import time_limit


def _count_for_ever() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # noqa: BLE001 - as torch does at places
            continue


def test_work_without_end_is_ended_even_if_it_takes_every_error_for_its_own() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(InvalidRequest, match="counting takes more than 0 s"), time_limit(0.05, doing="counting"):
        _count_for_ever()
    assert signal.getsignal(signal.SIGALRM) is before


def test_work_that_ends_in_time_is_left_alone() -> None:
    with time_limit(60, doing="nothing"):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
