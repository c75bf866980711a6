"""Turns to do what keeps the event loop busy, so that calls that come are taken meanwhile.

gRPC for Python takes one call in several rounds of the event loop, and a round is as long as there are tasks that can
go on. Hundreds of jobs that begin at once make each round long, so that calls wait in gRPC, where nobody is asked whose
turn it is, and a request for what is stored waits behind all that are to compile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from compilefarm.service.call_limits import MOST_CALLS
from compilefarm.service.fair_semaphore import FairSemaphore

# Between two turns. Measured on a busy gateway: gRPC takes a call in some ten rounds, with a tenth of them more calls
# are taken than jobs begin.
_ROUNDS = 16
# Turns that last at the same time. They wait for the store, and when that has been silent for a moment, all go on at
# once.
_PLACES = 32


class Turns:
    """Lets one begin after the other, some rounds of the event loop apart. Accounts take turns.

    Args:
        what: it is done, for messages.
    """

    def __init__(self, what: str) -> None:
        self._beginnings = FairSemaphore(what, places=1, account_places=1, account_waiting=MOST_CALLS)
        self._places = asyncio.Semaphore(_PLACES)

    @asynccontextmanager
    async def taken(self, account: str) -> AsyncIterator[None]:
        """Waits for a turn of an account, which lasts as long as the context.

        Raises:
            Busy: too many of the account wait already.
        """
        async with self._beginnings.acquired(account):
            await self._places.acquire()
            try:
                for _ in range(_ROUNDS):
                    await asyncio.sleep(0)
            except BaseException:
                self._places.release()
                raise
        try:
            yield
        finally:
            self._places.release()
