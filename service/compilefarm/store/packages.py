"""Packages in a backend: those of a key are a union, in which none replaces another.

They lie among cache entries, of whose room they take: entries/package/<key>/<name>/<publisher>/<namespace>. The farm
looks into no package, so that whoever may publish can be first under any name. What one publisher keeps leaves room for
what others publish, under the same name, too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from google.protobuf.message import DecodeError

from compilefarm.core.digests import DIGEST_LENGTH, digest_of
from compilefarm.core.errors import StoreFull, StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.entry_records import ENTRIES, namespace_of_entry, written_namespace
from compilefarm.store.records import DamagedRecord
from compilefarm.store.uses import Uses
from compilefarm.v1.package_pb2 import SignedPackage

_TITLE = b"compilefarm package sha256:"
# Of a key, of a publisher in a namespace: frames of a program, times what each of them was compiled for.
MOST_OF_KEY = 512
# Publishers that keep the same: those who start at a time find out the same.
MOST_OF_NAME = 3
_logger = logging.getLogger(__name__)
_PUBLISHER_DIGITS = 16


class Reserve(Protocol):
    """Makes room for bytes that are on their way."""

    async def __call__(self, coming: Mapping[str, int], *, namespace: str) -> None:
        """Passes if the bytes of a namespace may come, for what is on its way of each. Raises StoreFull."""


# Of a package: namespace and publisher, as paths write them.
_Place = tuple[str, str]


class PackageStore:
    """Packages in a backend.

    Args:
        backend: where they lie.
        uses: when they were used.
        reserve: makes room.
    """

    def __init__(self, backend: Backend, *, uses: Uses, reserve: Reserve) -> None:
        self._backend = backend
        self._uses = uses
        self._reserve = reserve
        # Bytes that are being written, by namespace.
        self._coming: Counter[str] = Counter()

    async def find(self, key: str, *, namespaces: Sequence[str]) -> AsyncIterator[SignedPackage]:
        """Yields the packages of a key, those of the first namespace first, and in it one of each publisher in turn.
        What is damaged is removed.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        paths = await self._paths(key)
        for namespace in map(written_namespace, namespaces):
            for path in _in_turns([found for place, found in sorted(paths.items()) if place[0] == namespace]):
                package = await self._read(path)
                if package is not None and not package.withdrawn:
                    yield package

    async def publish(self, package: SignedPackage) -> bool:
        """Keeps a package, unless its publisher, or several others, have one of its key and name there; whether it was
        kept.

        Raises:
            StoreFull: there is no room, or too many of that key and publisher are there.
            StoreUnavailable: the store cannot be written.
        """
        path = _path_of(package)
        paths = await self._paths(package.key)
        own = paths.get(_place_of(path), [])
        # Of the same namespace, under the same name.
        name = _of_name(path)
        copies = [each for found in paths.values() for each in found if _of_name(each) == name]
        if path in copies or len(copies) >= MOST_OF_NAME:
            return False
        if len(own) >= MOST_OF_KEY:
            raise StoreFull(f"key {package.key} has {len(own)} packages of this publisher, and no more are kept")
        package.published_seconds = self._uses.now()
        content = _write(package)
        self._coming[package.namespace] += len(content)
        try:
            await self._reserve(+self._coming, namespace=package.namespace)
            return await self._backend.create(path, content=content)
        finally:
            self._coming[package.namespace] -= len(content)

    async def withdraw(self, key: str, *, digest: str, namespace: str, reason: str) -> bool:
        """Has a package served no more, nor taken anew of its publisher; whether it was served until now.

        Args:
            key, namespace: where it is one of a few.
            digest: of its content.
            reason: why.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        for path in [path for found in (await self._paths(key)).values() for path in found]:
            if namespace_of_entry(path) == written_namespace(namespace):
                package = await self._read(path)
                if package is not None and not package.withdrawn and digest_of(package.content) == digest:
                    return await self._replace(path, package, reason)
        return False

    async def _replace(self, path: str, package: SignedPackage, reason: str) -> bool:
        record = SignedPackage(
            key=package.key,
            name=package.name,
            namespace=package.namespace,
            publisher=package.publisher,
            withdrawn=reason,
            published_seconds=self._uses.now(),
        )
        # Who publishes it again in between is withdrawn by the next who finds it wrong.
        await self._backend.delete(path)
        return await self._backend.create(path, content=_write(record))

    async def _paths(self, key: str) -> dict[_Place, list[str]]:
        """The paths of the packages of a key by namespace and publisher, as paths write them."""
        paths: dict[_Place, list[str]] = {}
        async for stored in self._backend.objects(_folder_of(key)):
            paths.setdefault(_place_of(stored.path), []).append(stored.path)
        return {place: sorted(found) for place, found in paths.items()}

    async def _read(self, path: str) -> SignedPackage | None:
        content = await self._backend.find(path)
        if content is None:
            return None
        try:
            package = _parse(content)
            if _path_of(package) != path:
                raise DamagedRecord(f"it is a package of {package.key[:100]!r}")
        except DamagedRecord as damage:
            await self._remove_damaged(path, damage)
            return None
        await self._uses.note(path, written_seconds=package.published_seconds)
        return package

    async def _remove_damaged(self, path: str, damage: DamagedRecord) -> None:
        _logger.warning("the package at %s of %s is served no more: %s", path, self._backend.location, damage)
        try:
            await self._backend.delete(path)
        except StoreUnavailable as error:
            # Others of its key are served, in a store that is read-only, too.
            _logger.warning("it stays there: %s", error)


def _in_turns(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    return (path for turn in zip_longest(*lists) for path in turn if path is not None)


def _of_name(path: str) -> tuple[str, str]:
    *_, name, _, namespace = path.split("/")
    return name, namespace


def _place_of(path: str) -> _Place:
    return namespace_of_entry(path), path.split("/")[-2]


def _folder_of(key: str) -> str:
    return f"{ENTRIES}/package/{key}"


def _path_of(package: SignedPackage) -> str:
    publisher = digest_of(package.publisher.encode())[:_PUBLISHER_DIGITS]
    return f"{_folder_of(package.key)}/{package.name}/{publisher}/{written_namespace(package.namespace)}"


def _write(package: SignedPackage) -> bytes:
    content = package.SerializeToString(deterministic=True)
    return _TITLE + digest_of(content).encode() + b"\n" + content


def _parse(record: bytes) -> SignedPackage:
    content = record[len(_TITLE) + DIGEST_LENGTH + 1 :]
    if record != _TITLE + digest_of(content).encode() + b"\n" + content:
        raise DamagedRecord("its bytes do not match its digest")
    try:
        return SignedPackage.FromString(content)
    except DecodeError as error:
        raise DamagedRecord(f"it was written wrongly: {error}") from error
