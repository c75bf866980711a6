"""A semaphore that is fair to accounts, with a limit for each account and one for all together."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import AbstractAsyncContextManager

from compilefarm.core.errors import Busy

_RETRY_SECONDS = 1.0


class FairSemaphore:
    """Permits that callers hold while something is done for them. Without one a caller waits; accounts take turns.

    Args:
        what: is done, for messages.
        places: of all.
        account_places: of one account.
        account_waiting: how many of one account may wait.
    """

    def __init__(self, what: str, *, places: int, account_places: int, account_waiting: int = 1000) -> None:
        self._what = what
        self._free = places
        self._account_places = account_places
        self._account_waiting = account_waiting
        self._taken: Counter[str] = Counter()
        # In the order in which they come next. None is empty.
        # Those who go away leave it wherever they stand, thousands at a time.
        self._lines: dict[str, OrderedDict[asyncio.Future[None], None]] = {}

    def acquired(self, account: str) -> AbstractAsyncContextManager[None]:
        """Waits for a place, and has it for as long as the context lasts.

        Raises:
            Busy: too many of the account wait already.
        """
        return _Permit(self, account)

    async def acquire(self, account: str) -> None:
        """Waits for a place, like `acquired`; `release` gives it back."""
        if self._free and not self._lines and self._taken[account] < self._account_places:
            self._free -= 1
            self._taken[account] += 1
        else:
            await self._wait(account)

    def release(self, account: str) -> None:
        """Gives a place of the account back."""
        self._free += 1
        self._taken[account] -= 1
        if not self._taken[account]:
            del self._taken[account]
        self._let_in()

    async def _wait(self, account: str) -> None:
        line = self._lines.setdefault(account, OrderedDict())
        if len(line) >= self._account_waiting:
            raise Busy(
                f"{self._what}: {len(line)} calls of {account or 'this caller'} wait already; ask again later",
                retry_after_seconds=_RETRY_SECONDS,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line[turn] = None
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(account, turn)
            else:
                self.release(account)
            raise

    def _leave(self, account: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(account, OrderedDict())
        line.pop(turn, None)
        if not line:
            self._lines.pop(account, None)

    def _let_in(self) -> None:
        while self._free and (account := self._next()) is not None:
            line = self._lines.pop(account)
            turn, _ = line.popitem(last=False)
            if line:
                # It is the last one now.
                self._lines[account] = line
            if not turn.cancelled():
                self._free -= 1
                self._taken[account] += 1
                turn.set_result(None)

    def _next(self) -> str | None:
        return next((account for account in self._lines if self._taken[account] < self._account_places), None)


class _Permit(AbstractAsyncContextManager[None]):
    """A place that is given back at the end. A class: every call has several, and a generator takes twice as long."""

    __slots__ = ("_account", "_semaphore")

    def __init__(self, semaphore: FairSemaphore, account: str) -> None:
        self._semaphore = semaphore
        self._account = account

    async def __aenter__(self) -> None:
        await self._semaphore.acquire(self._account)

    async def __aexit__(self, *_: object) -> None:
        self._semaphore.release(self._account)
