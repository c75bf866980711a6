"""Artifacts and broken storage for tests of whatever uses a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import digest_of
from compilefarm.core.pool import Artifact
from compilefarm.store.backend import Backend, WrappingBackend
from compilefarm.v1.manifest_pb2 import Blob, Encoding, Library, Manifest

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import PutResult


def sample_key(name: str, *, graph: str = "graph") -> str:
    """A key like those of jobs: another one for every name, with the same beginning for the same graph."""
    return f"{digest_of(graph.encode())[:16]}-{digest_of(name.encode())}"


def sample_artifact(key: str, *, program: bytes = b"program", libraries: Sequence[bytes] = (b"library",)) -> Artifact:
    """A finished artifact of the given contents, stored as they are."""
    manifest = Manifest(
        key=key,
        format=ARTIFACT_FORMAT,
        program=_blob(program),
        libraries=[Library(source_digest=digest_of(content), blob=_blob(content)) for content in libraries],
    )
    return Artifact(manifest=manifest, blobs={digest_of(content): content for content in (program, *libraries)})


def _blob(content: bytes) -> Blob:
    return Blob(
        digest=digest_of(content),
        size_bytes=len(content),
        encoding=Encoding.ENCODING_IDENTITY,
        content_size_bytes=len(content),
    )


class MovedClock:
    """A clock that is ahead of the machine's by as much as it was moved."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead_seconds

    def move(self, seconds: float) -> None:
        """Moves it ahead."""
        self._ahead_seconds += seconds


class LateAnswers(WrappingBackend):
    """A backend whose next answer waits for the event `late`, if there is one; `asked` tells that a caller waits."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.asked = asyncio.Event()
        self.late: asyncio.Event | None = None

    async def find(self, path: str) -> bytes | None:
        content = await super().find(path)
        late, self.late = self.late, None
        if late is not None:
            self.asked.set()
            await late.wait()
        return content


class FillingStore(MemoryStore):
    """A store of obstore in memory whose disk is full while `full` is set."""

    def __init__(self) -> None:
        self.full = False

    async def put_async(self, *arguments: Any, **options: Any) -> PutResult:
        if self.full:
            raise GenericError("Generic LocalFileSystem error: Unable to copy data to file: No space left on device")
        return await super().put_async(*arguments, **options)
