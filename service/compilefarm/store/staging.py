"""Where uploads arrive before they are put into a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.files import StagedBlob, staged


@asynccontextmanager
async def staging(backend: Backend, *, digest: str) -> AsyncIterator[StagedBlob]:
    """Takes the pieces of what has a digest. Nothing is left of them when the context ends, but for what was put.

    Raises:
        InvalidRequest: `digest` is not written as a digest.
        StoreUnavailable: they cannot be written.
    """
    check_digest(digest)
    try:
        async with staged(backend.staging, name=digest) as blob:
            yield blob
    except OSError as error:
        raise StoreUnavailable(
            f"blob {digest} cannot be written to {backend.staging} ({error.strerror}): make room there"
        ) from error
