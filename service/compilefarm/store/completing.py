"""Work that cannot be stopped, and callers that go away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def completed(work: asyncio.Future[T]) -> T:
    """Returns what some work gives, and ends no earlier than the work, even if it is cancelled meanwhile: a caller who
    goes away keeps its place until then, and cannot have more done at a time than who stays.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            # To ask for the error is to have looked at it: nobody else may be there.
            work.exception()
        raise
