"""What the store says, for those who are told what is known without it, too: operators look just when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from compilefarm.core.errors import StoreUnavailable

_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown(Generic[T]):
    """What the store said.

    Attributes:
        value: what it said; None if it said nothing.
        failure: why it said nothing; empty if it did.
    """

    value: T | None
    failure: str


async def best_known(answer: Awaitable[T], *, seconds: float = _SECONDS) -> BestKnown[T]:
    """Waits for what the store says, for so long.

    Args:
        answer: asks it.
        seconds: how long.
    """
    try:
        async with asyncio.timeout(seconds):
            return BestKnown(value=await answer, failure="")
    except StoreUnavailable as error:
        return BestKnown(value=None, failure=str(error))
    except TimeoutError:
        return BestKnown(value=None, failure=f"the store does not say within {seconds:g} s what lies there")
