"""Counts objects and bytes in the store, without listing it each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compilefarm.store.backend import Backend, StoredObject, WrappingBackend
from compilefarm.store.steps import in_steps

# What an object of a store of artifacts counts at least: a block of a disk. Whoever sends small tensors would fill disk
# and memory otherwise, however small the limit is.
SMALLEST_OBJECT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Objects and bytes below one top-level folder."""

    objects: int
    size_bytes: int


def counted_bytes(size_bytes: int, *, smallest_bytes: int = SMALLEST_OBJECT_BYTES) -> int:
    """Returns what an object of that size counts."""
    return max(size_bytes, smallest_bytes)


class _Area:
    """The objects below one top-level folder. Sizes are remembered, for those in the storage may change by damage."""

    def __init__(self, *, smallest_bytes: int) -> None:
        self._smallest_bytes = smallest_bytes
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0

    def add(self, path: str, *, size_bytes: int) -> None:
        self.remove(path)
        self._sizes[path] = self.counted_bytes(size_bytes)
        self._size_bytes += self._sizes[path]

    def counted_bytes(self, size_bytes: int) -> int:
        return counted_bytes(size_bytes, smallest_bytes=self._smallest_bytes)

    def remove(self, path: str) -> None:
        self._size_bytes -= self._sizes.pop(path, 0)

    def paths(self) -> list[str]:
        return list(self._sizes)

    def size_of(self, path: str) -> int | None:
        return self._sizes.get(path)

    def count(self) -> Count:
        return Count(objects=len(self._sizes), size_bytes=self._size_bytes)


class CountingBackend(WrappingBackend):
    """A backend that counts everything once, and then keeps the count current.

    What other services that share the storage write is seen at the next listing only. Takes about 0.3 KB of memory for
    an object.

    Args:
        backend: where the objects lie.
        areas: the top-level folders that are counted.
        smallest_bytes: what an object counts at least: folders, inodes and this count take room, too.
    """

    def __init__(self, backend: Backend, *, areas: Iterable[str], smallest_bytes: int = 0) -> None:
        super().__init__(backend)
        self._areas = {name: _Area(smallest_bytes=smallest_bytes) for name in areas}

    @property
    def size_bytes(self) -> int:
        """The size of all that is counted."""
        return sum(area.count().size_bytes for area in self._areas.values())

    async def list_area(self, name: str) -> dict[str, StoredObject]:
        """Lists an area that is counted, by path, and corrects the count. What is written meanwhile may be left out."""
        area = self._areas[name]
        known, found = area.paths(), {}
        # One by one as they come, so that others have their turn: there may be hundreds of thousands.
        async for stored in self.objects(name):
            area.add(stored.path, size_bytes=stored.size_bytes)
            found[stored.path] = replace(stored, size_bytes=area.counted_bytes(stored.size_bytes))
        async for path in in_steps(known):
            if path not in found:
                area.remove(path)
        return found

    async def count(self) -> None:
        """Counts everything there is. To be called once, before use."""
        for name in self._areas:
            await self.list_area(name)

    def count_of(self, area: str) -> Count:
        """Returns the count of a top-level folder."""
        return self._areas[area].count()

    def has_counted(self, path: str) -> bool:
        """Returns whether an object is among what is counted."""
        area = self._area_of(path)
        return area is not None and area.size_of(path) is not None

    async def create(self, path: str, *, content: bytes) -> bool:
        return await self._counting(partial(super().create, path, content=content), path, size_bytes=len(content))

    async def create_from(self, path: str, *, file: Path) -> bool:
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
        return await self._counting(partial(super().create_from, path, file=file), path, size_bytes=size_bytes)

    async def move(self, path: str, *, target: str) -> bool:
        moved = await super().move(path, target=target)
        area, target_area = self._area_of(path), self._area_of(target)
        size_bytes = area and area.size_of(path)
        self._forget(path)
        if moved and target_area is not None:
            target_area.add(target, size_bytes=size_bytes or 0)
        return moved

    async def delete(self, path: str) -> None:
        await super().delete(path)
        self._forget(path)

    async def _counting(self, create: Callable[[], Awaitable[bool]], path: str, *, size_bytes: int) -> bool:
        async def count() -> bool:
            created = await create()
            area = self._area_of(path)
            if created and area is not None:
                area.add(path, size_bytes=size_bytes)
            return created

        # What is written is there, and counts, also where whoever sent it has gone meanwhile.
        return await asyncio.shield(asyncio.create_task(count(), name=f"writing of {path}"))

    def _forget(self, path: str) -> None:
        area = self._area_of(path)
        if area is not None:
            area.remove(path)

    def _area_of(self, path: str) -> _Area | None:
        return self._areas.get(path.partition("/")[0])
