"""Work that goes on when whoever had it begin has gone, as what threads do: a place held for it lasts as long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


async def completed(work: asyncio.Future[T]) -> T:
    """Returns what some work gives, and ends no earlier than the work, even if it is cancelled meanwhile. For whoever
    holds a place for it: who goes away cannot have more done at a time than who stays. Others go when they are told.
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


@asynccontextmanager
async def entered(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Is in a context; who is cancelled on the way into it stays until that has come to an end (see `completed`)."""
    entering = asyncio.ensure_future(context.__aenter__())
    async with AsyncExitStack() as stack:
        try:
            value = await completed(entering)
        finally:
            if entering.done() and not entering.cancelled() and entering.exception() is None:
                stack.push_async_exit(context)
        yield value
