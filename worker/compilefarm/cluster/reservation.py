"""The reservation of a worker for callers of a gateway that has started again: they ask again for what it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError

from compilefarm.cluster.use import Use
from compilefarm.cluster.work import Kept
from compilefarm.core.pool import Assignment


class Reservation:
    """A compile that a worker has gone on with, until somebody asks for it or nobody has for long enough."""

    def __init__(self) -> None:
        self._kept: Kept | None = None
        self._taken = asyncio.Event()

    @property
    def key(self) -> str:
        """Of the job; empty if there is none."""
        return "" if self._kept is None else self._kept.key

    def take(self, assignment: Assignment) -> str | None:
        """Ends the reservation with the name of the work that is done for an assignment; None if none is."""
        kept, self._kept = self._kept, None
        self._taken.set()
        if kept is None or kept != Kept.of(assignment, name=kept.name):
            return None
        return kept.name

    @contextmanager
    def of(self, kept: Kept | None, *, actor: Any, use: Use, seconds: float) -> Iterator[None]:
        """Reserves a worker while the context lasts.

        Args:
            kept: what it does; None: nothing is reserved.
            actor: that does it.
            use: of the worker, which is wanted meanwhile.
            seconds: how long somebody may take to ask.
        """
        self._kept = kept
        self._taken.clear()
        waiting = None if kept is None else asyncio.create_task(self._wait(kept, actor=actor, use=use, seconds=seconds))
        try:
            yield
        finally:
            self._kept = None
            if waiting is not None:
                waiting.cancel()

    async def _wait(self, kept: Kept, *, actor: Any, use: Use, seconds: float) -> None:
        with use.held(), contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._taken.wait(), timeout=seconds)
        if self._kept is kept:
            self._kept = None
            with contextlib.suppress(RayError):
                # Whoever looks at the actor finds out that it is gone.
                await actor.end.remote(kept.name)
