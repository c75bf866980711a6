"""Blobs of the store for workers: a large one is not held in memory."""

from __future__ import annotations

import asyncio

from compilefarm.core.contents import Content, FileContent
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.files import pieces_of


async def read_content(digest: str, *, store: ArtifactStore) -> Content:
    """Returns a blob: bytes if it is small, else a copy in a file without a name, which an eviction leaves alone.

    Raises:
        NotStored: there is no such blob, or its bytes no longer match.
        StoreUnavailable: the store cannot be read, or there is no room for the copy.
    """
    async with store.reading(digest) as stored:
        pieces = pieces_of(stored)
        first = await anext(pieces)
        if len(first) == stored.size_bytes:
            return first
        try:
            content = FileContent()
            await asyncio.to_thread(content.write, first)
            async for piece in pieces:
                await asyncio.to_thread(content.write, piece)
        except OSError as error:
            raise StoreUnavailable(f"blob {digest} cannot be kept in a temporary file: {error.strerror}") from error
    return content
