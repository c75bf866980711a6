"""Results on their way from a worker to the gateway, which asks for what is new, and then for blobs piece by piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from compilefarm.cluster.parts import PARTS, PIECE_BYTES, split
from compilefarm.cluster.work import Made, News, OnPhase, Result
from compilefarm.core.contents import Content
from compilefarm.core.errors import FarmError, StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.worker.spooling import SpoolingAssembly

# Pieces that are asked for at a time.
_PIECES_AHEAD = 4


async def outcome_of(actor: Any, work: str, *, on_phase: OnPhase, first: News | None = None) -> Made | CompileFailure:
    """Waits for the end of a piece of work.

    Args:
        actor: that does it.
        work: its name.
        on_phase: called at every change of phase, also those that happened before.
        first: the news with which it began; None: it began earlier.

    Raises:
        FarmError: the one that the worker raised.
        RayError: the actor is lost.
    """
    seen = 0
    news: News = first or await actor.news.remote(work, seen)
    while True:
        for phase in news.phases:
            on_phase(phase)
        seen += len(news.phases)
        if isinstance(news.outcome, FarmError):
            raise news.outcome
        if news.outcome is not None:
            return news.outcome
        news = await actor.news.remote(work, seen)


async def result_of(actor: Any, work: str, *, on_phase: OnPhase, first: News | None = None) -> Result:
    """As `outcome_of`, with the blobs: large ones in files."""
    outcome = await outcome_of(actor, work, on_phase=on_phase, first=first)
    if isinstance(outcome, CompileFailure):
        return outcome
    return Artifact(manifest=outcome.manifest, blobs={**outcome.small, **await _blobs(actor, work, outcome.sizes)})


async def send(actor: Any, work: str, blobs: Mapping[str, Content]) -> None:
    """Sends blobs for a verification.

    Raises:
        RayError: the actor is lost.
    """
    for digest, start, continues in _places({digest: len(content) for digest, content in blobs.items()}):
        piece = await asyncio.to_thread(blobs[digest].__getitem__, slice(start, start + PIECE_BYTES))
        await actor.receive.remote(work, digest, continues, *split(piece))


async def _blobs(actor: Any, work: str, sizes: Mapping[str, int]) -> dict[str, Content]:
    blobs: dict[str, Content] = {}
    assembly = SpoolingAssembly()
    async for piece in _pieces(actor, work, sizes):
        try:
            blob = await assembly.add(piece)
        except OSError as error:
            raise StoreUnavailable(f"the artifact cannot be kept in a temporary file: {error.strerror}") from error
        if blob is not None:
            # As the supervisor of the worker has computed it; the store computes it once more.
            blobs[piece.digest] = blob[1]
    return blobs


async def _pieces(actor: Any, work: str, sizes: Mapping[str, int]) -> AsyncIterator[ChildBlob]:
    """The pieces of all blobs, in order; some are asked for before they are wanted."""
    read = actor.read.options(num_returns=PARTS)
    asked: deque[tuple[str, bool, Sequence[Any]]] = deque()
    for digest, start, continues in _places(sizes):
        asked.append((digest, continues, read.remote(work, digest, start)))
        if len(asked) == _PIECES_AHEAD:
            yield await _received(*asked.popleft())
    while asked:
        yield await _received(*asked.popleft())


async def _received(digest: str, continues: bool, asked: Sequence[Any]) -> ChildBlob:
    return ChildBlob(digest=digest, content=b"".join([await part for part in asked]), continues=continues)


def _places(sizes: Mapping[str, int]) -> Iterator[tuple[str, int, bool]]:
    """Digest, start, and whether there is more of the blob, of each piece; of an empty blob there is one."""
    for digest, size_bytes in sizes.items():
        for start in range(0, size_bytes or 1, PIECE_BYTES):
            yield digest, start, start + PIECE_BYTES < size_bytes
