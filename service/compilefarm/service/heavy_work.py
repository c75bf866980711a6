"""Runs work on large requests in threads, which would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compilefarm.service.allowances import Allowance
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.store.completing import completed

T = TypeVar("T")

# A smaller request is parsed and checked at once: that takes a millisecond at most.
_BRIEF_BYTES = 1024
# One of up to this size comes in turn, and is not given to a thread. Measured on a small server: what has 16 KiB and
# consists of nothing but values takes 11 ms, and jobs of models have 10 to 60 KiB for 100 nodes.
_LIGHT_BYTES = 16 * 1024
# How long the event loop is left to others after light work, as a share of what that took.
_REST = 0.5
# Python's threads take turns, so that more of them do no more, and let the event loop wait longer for its own.
_THREADS = 2
# Requests that wait are held in memory, some of them parsed: that takes up to twelve times as much.
_ACCOUNT_BYTES = 64 * 1024 * 1024
_ALL_BYTES = 256 * 1024 * 1024


class HeavyWork:
    """Threads, which accounts share: none has all of them. Less than that is done in the event loop, piece by piece."""

    def __init__(self) -> None:
        self._semaphore = FairSemaphore("checking large requests", places=_THREADS, account_places=1)
        self._light_semaphore = FairSemaphore("checking requests", places=1, account_places=1)
        # In seconds of the event loop.
        self._rests_until = 0.0
        self._allowance = Allowance(account_bytes=_ACCOUNT_BYTES, all_bytes=_ALL_BYTES)
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="heavy work")

    async def run(self, work: Callable[[], T], *, size_bytes: int, account: str) -> T:
        """Does some work, in a thread if it is heavy. Accounts take turns, so that many small
        requests of one do not come before those of others.

        Args:
            work: what is done.
            size_bytes: of the request that it is done with.
            account: of the caller.

        Raises:
            Busy: too much of the account waits already.
        """
        if size_bytes <= _BRIEF_BYTES:
            return work()
        if size_bytes <= _LIGHT_BYTES:
            return await self.in_turn(work, account=account)
        with self._allowance.using(account) as add:
            add(size_bytes)
            async with self._semaphore.acquired(account):
                return await completed(asyncio.get_running_loop().run_in_executor(self._threads, work))

    async def in_turn(self, work: Callable[[], T], *, account: str) -> T:
        """Does some light work in the event loop, when it is the turn of the account.

        Raises:
            Busy: too much of the account waits already.
        """
        async with self._light_semaphore.acquired(account):
            return await self._at_rest(work)

    async def _at_rest(self, work: Callable[[], T]) -> T:
        """Does light work when the event loop has had its time since the last. A call takes many rounds of it, and in
        each would wait for a piece of work.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(self._rests_until - loop.time(), 0.0))
        started = loop.time()
        try:
            return work()
        finally:
            self._rests_until = loop.time() + (loop.time() - started) * _REST

    def close(self) -> None:
        """Ends the threads when they have done what they are doing."""
        self._threads.shutdown(wait=False)
