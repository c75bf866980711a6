"""Looks at the guards of artifacts a little at a time: an artifact may have ten thousand terms of them, each of which
takes a microsecond or more, and thousands may ask for it, each with other sizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from compilefarm.core.expressions import MAX_SYMBOLS, check_guards, holds
from compilefarm.v1.graph_pb2 import Expression

# As they are on the wire: some five hundred terms. One guard may have twice as many.
_TURN_BYTES = 2 * 1024
_ROUNDS = 10

T = TypeVar("T")


class GuardTurns:
    """Looks at guards for whoever asks, a millisecond or two at a time, in the order in which they ask. Between one
    turn and the next there is time for all who want something else.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        # Looked at since others had their time.
        self._looked_at_bytes = 0

    async def hold(self, guards: Sequence[Expression], hints: Sequence[int]) -> bool:
        """Returns whether all of some checked guards hold for these values of the symbols."""
        # Most have none, and wait for nobody.
        return not guards or bool(await self.not_ruled_out([(guards, guards)], hints))

    async def not_ruled_out(
        self, candidates: Iterable[tuple[T, Sequence[Expression] | None]], hints: Sequence[int]
    ) -> list[T]:
        """Returns those of some candidates whose checked guards hold for these values of the symbols, or are not known.

        Args:
            candidates: each with its guards; None if they are not known.
            hints: the values.
        """
        left = list[T]()
        await self._in_turns(_ruling_out(candidates, hints, left=left))
        return left

    async def check(self, guards: Sequence[Expression]) -> None:
        """Checks the form and the size of the guards of an artifact, which may have any number of symbols.

        Raises:
            InvalidRequest: one is malformed, too large or too deep, or they are too many.
        """
        if guards:
            await self._in_turns(_checking(guards))

    async def rest(self) -> None:
        """Has a turn in which nothing is done: to look at guards is not all that those who look through many cost."""
        async with self._turn:
            await _wait_some_rounds()

    async def _in_turns(self, work: Iterator[int]) -> None:
        """Does work that yields how many bytes it has looked at."""
        is_left = True
        while is_left:
            async with self._turn:
                is_left = self._go_on(work)
                if is_left:
                    await _wait_some_rounds()

    def _go_on(self, work: Iterator[int]) -> bool:
        """Does work until the turn is over. Returns whether some may be left."""
        for size_bytes in work:
            self._looked_at_bytes += size_bytes
            if self._looked_at_bytes >= _TURN_BYTES:
                self._looked_at_bytes = 0
                return True
        return False


def _ruling_out(
    candidates: Iterable[tuple[T, Sequence[Expression] | None]], hints: Sequence[int], *, left: list[T]
) -> Iterator[int]:
    for candidate, guards in candidates:
        for guard in guards or ():
            does_hold = holds((guard,), hints)
            yield guard.ByteSize()
            if not does_hold:
                break
        else:
            left.append(candidate)


def _checking(guards: Iterable[Expression]) -> Iterator[int]:
    terms = 0
    for guard in guards:
        terms = check_guards((guard,), symbols=MAX_SYMBOLS, what="a guard", before=terms)
        yield guard.ByteSize()


async def _wait_some_rounds() -> None:
    """Lets others go first: gRPC takes one call in a round of the event loop, and they have to come that far."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
