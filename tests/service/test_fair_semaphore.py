"""Permits are neither lost nor given twice, however those who wait go away."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.service.fair_semaphore import FairSemaphore


async def test_a_permit_that_comes_too_late_is_for_the_next_one() -> None:
    permits = FairSemaphore("", places=1, account_places=1)
    await permits.acquire("one")
    late, after = (asyncio.ensure_future(permits.acquire(account)) for account in ("two", "three"))
    await asyncio.sleep(0)
    # It is given to one who is cancelled before it has heard of it.
    permits.release("one")
    late.cancel()
    async with asyncio.timeout(10):
        await after
    with pytest.raises(asyncio.CancelledError):
        await late
    # There is no second one.
    next_one = asyncio.ensure_future(permits.acquire("one"))
    await asyncio.sleep(0)
    assert not next_one.done()
    permits.release("three")
    await next_one
