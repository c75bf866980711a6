"""A read-only backend, for a copy that is mounted read-only or a storage that others fill."""

from __future__ import annotations

from pathlib import Path

from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import WrappingBackend

READ_ONLY_REMEDY = "it can be read, and `compilefarm serve --read-only` serves what it holds"


class ReadOnlyBackend(WrappingBackend):
    """Refuses to write. Uses are not noted: services that may write do not see what is read here."""

    async def create(self, path: str, *, content: bytes) -> bool:
        del content
        raise self._refusal(path)

    async def create_from(self, path: str, *, file: Path) -> bool:
        del file
        raise self._refusal(path)

    async def settle(self, path: str) -> None:
        """Does nothing: whoever wrote it has seen to that."""

    async def touch(self, path: str) -> None:
        """Does nothing."""

    async def move(self, path: str, *, target: str) -> bool:
        del target
        raise self._refusal(path)

    async def delete(self, path: str) -> None:
        raise self._refusal(path)

    def _refusal(self, path: str) -> StoreUnavailable:
        return StoreUnavailable(f"{path} is not written: the store at {self.location} is served read-only")
