"""How often an account may do something within an hour."""

from __future__ import annotations

import pytest

from compilefarm.service import hourly_limits
from compilefarm.service.hourly_limits import HourlyLimits
from compilefarm.service.testing import ManualClock


def test_an_account_may_do_it_so_often_in_any_hour() -> None:
    clock = ManualClock()
    limits = HourlyLimits(most=2, clock=clock)
    assert limits.take("one")
    clock.advance(1800)
    assert limits.take("one")
    assert not limits.take("one")
    assert limits.take("another")
    clock.advance(1801)
    assert limits.take("one")
    assert not limits.take("one")


def test_accounts_are_forgotten_after_an_hour_and_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    limits = HourlyLimits(most=1, clock=clock)
    for number in range(50):
        assert limits.take(f"early {number}")
    clock.advance(3601)
    assert limits.take("late")
    assert list(limits._times) == ["late"]
    monkeypatch.setattr(hourly_limits, "_MOST_ACCOUNTS", 3)
    for number in range(50):
        assert limits.take(f"many {number}")
    assert len(limits._times) == 3
    assert not limits.take("many 49")
