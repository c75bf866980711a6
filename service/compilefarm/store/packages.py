"""Packages in a backend: those of a key are a union, in which none replaces another.

They lie among cache entries, of whose room they take: entries/package/<key>/<name>/<namespace>.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from google.protobuf.message import DecodeError

from compilefarm.core.digests import DIGEST_LENGTH, digest_of
from compilefarm.core.errors import StoreFull
from compilefarm.store.backend import Backend
from compilefarm.store.entry_records import ENTRIES, namespace_of_entry, written_namespace
from compilefarm.store.records import DamagedRecord
from compilefarm.store.uses import Uses
from compilefarm.v1.package_pb2 import SignedPackage

_TITLE = b"compilefarm package sha256:"
# Of a key in a namespace: frames of a program, times what each of them was compiled for.
MOST_OF_KEY = 512
_logger = logging.getLogger(__name__)


Reserve = Callable[[Mapping[str, int]], Awaitable[None]]


class PackageStore:
    """Packages in a backend.

    Args:
        backend: where they lie.
        uses: when they were used.
        reserve: makes room for so many bytes, by namespace.
    """

    def __init__(self, backend: Backend, *, uses: Uses, reserve: Reserve) -> None:
        self._backend = backend
        self._uses = uses
        self._reserve = reserve

    async def find(self, key: str, *, namespaces: Sequence[str]) -> AsyncIterator[SignedPackage]:
        """Yields the packages of a key, those of the first namespace first. One that is damaged is removed.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        paths = await self._paths(key)
        for namespace in namespaces:
            for path in paths.get(written_namespace(namespace), ()):
                package = await self._read(path)
                if package is not None:
                    yield package

    async def publish(self, package: SignedPackage) -> bool:
        """Keeps a package, unless one of its key, name and namespace is there; whether it was not.

        Raises:
            StoreFull: there is no room, or too many of that key are there.
            StoreUnavailable: the store cannot be written.
        """
        path = _path_of(package)
        others = (await self._paths(package.key)).get(namespace_of_entry(path), [])
        if path in others:
            return False
        if len(others) >= MOST_OF_KEY:
            raise StoreFull(f"key {package.key} has {len(others)} packages, and no more are kept")
        package.published_seconds = self._uses.now()
        content = _write(package)
        await self._reserve({package.namespace: len(content)})
        return await self._backend.create(path, content=content)

    async def _paths(self, key: str) -> dict[str, list[str]]:
        """The paths of the packages of a key by namespace, as paths write it."""
        paths: dict[str, list[str]] = {}
        async for stored in self._backend.objects(_folder_of(key)):
            paths.setdefault(namespace_of_entry(stored.path), []).append(stored.path)
        return {namespace: sorted(found) for namespace, found in paths.items()}

    async def _read(self, path: str) -> SignedPackage | None:
        content = await self._backend.find(path)
        if content is None:
            return None
        try:
            package = _parse(content)
            if _path_of(package) != path:
                raise DamagedRecord(f"it is a package of {package.key[:100]!r}")
        except DamagedRecord as damage:
            _logger.warning("the package at %s of %s is served no more: %s", path, self._backend.location, damage)
            await self._backend.delete(path)
            return None
        await self._uses.note(path, written_seconds=package.published_seconds)
        return package


def _folder_of(key: str) -> str:
    return f"{ENTRIES}/package/{key}"


def _path_of(package: SignedPackage) -> str:
    return f"{_folder_of(package.key)}/{package.name}/{written_namespace(package.namespace)}"


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
