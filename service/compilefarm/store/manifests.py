"""Manifests: what is stored under a key.

A manifest is written once and never changed. One that cannot be served (of a newer release, with blobs that were lost,
whose signature is not trusted) is passed over, and the next artifact of its key takes another number. One that is
damaged is set aside.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import IO

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import DIGEST_LENGTH
from compilefarm.core.errors import InvalidRequest, StoreUnavailable
from compilefarm.core.keys import is_key
from compilefarm.store.backend import LARGEST_IN_MEMORY_BYTES, Backend, StoredObject
from compilefarm.store.blobs import BlobStore, few_at_a_time
from compilefarm.store.damage import Damage
from compilefarm.store.guard_turns import GuardTurns
from compilefarm.store.known_guards import KnownGuards
from compilefarm.store.layout import (
    GRAPH_DIGITS,
    MANIFESTS,
    key_folder,
    key_of,
    manifest_path,
    namespace_of,
    use_path,
)
from compilefarm.store.records import DamagedRecord, NewerRecord, OlderRecord, read_record, write_record
from compilefarm.store.signing_policy import SigningPolicy
from compilefarm.store.uses import Uses
from compilefarm.store.variants import MOST_VARIANTS, Variants
from compilefarm.v1.manifest_pb2 import Manifest

SHORTEST_PREFIX = 6
MOST_KEYS = 20
# A beginning may fit the keys of many, and each costs a listing.
MOST_LOOKED_AT = 200
_PREFIX = re.compile(rf"[0-9a-f-]{{{SHORTEST_PREFIX},{GRAPH_DIGITS + 1 + DIGEST_LENGTH}}}")
# Names of storages may be longer than numbers that Python reads.
_NUMBER = re.compile(r"[0-9]{1,18}")
# How often another writer may be faster: each time, one more manifest of the key is there.
_MOST_TRIALS = 1000
# Variants that most keys have at most.
_FEW = 10


class ManifestStore:
    """Manifests in a backend.

    Args:
        backend: where they lie.
        blobs: where the blobs lie that they name.
        uses: their leases.
        damage: sets damaged ones aside.
        signing: how they are signed, and which are served.
    """

    def __init__(
        self, backend: Backend, *, blobs: BlobStore, uses: Uses, damage: Damage, signing: SigningPolicy
    ) -> None:
        self._backend = backend
        self._blobs = blobs
        self._uses = uses
        self._damage = damage
        self._signing = signing
        self._guards = KnownGuards()
        self._guard_turns = GuardTurns()

    async def find(self, key: str, *, namespaces: Sequence[str], hints: Sequence[int] | None = None) -> Manifest | None:
        """Returns the first manifest of a key, in one of some namespaces, that can be served and whose guards hold for
        `hints`; None takes any.

        Raises:
            InvalidRequest: `key` is not written as a key.
            StoreUnavailable: the store cannot be read.
        """

        async def fits(manifest: Manifest) -> bool:
            return hints is None or await self._guard_turns.hold(manifest.guards, hints)

        # Most keys have one manifest, and a listing costs more than a look.
        firsts = [manifest_path(key, variant=0, namespace=namespace) for namespace in namespaces]
        for path in firsts:
            if (manifest := await self._take(path, wanted=fits)) is not None:
                return manifest
        for stored in await self._not_ruled_out(await self._stored(key), namespaces=namespaces, hints=hints):
            if stored.path in firsts:
                continue

            async def fits_and_is_known(manifest: Manifest, *, stored: StoredObject = stored) -> bool:
                self._guards.add(stored, manifest)
                return await fits(manifest)

            if (manifest := await self._take(stored.path, wanted=fits_and_is_known)) is not None:
                return manifest
        return None

    async def add(self, manifest: Manifest) -> Manifest:
        """Stores a manifest, unless its key has one in its namespace with the same guards that can be served; returns
        what is stored now. Beyond MOST_VARIANTS the one goes for it that was used least recently, and not lately.

        Raises:
            InvalidRequest: its key is not written as a key.
            SignerUnavailable: it cannot be signed.
            StoreUnavailable: the store cannot be read or written.
        """
        manifest = await self._signing.sign(manifest)
        record = write_record(manifest)

        async def has_same_guards(stored: Manifest) -> bool:
            return stored.guards == manifest.guards

        for _ in range(_MOST_TRIALS):
            paths = await self._list(manifest.key, namespaces=[manifest.namespace])
            for path in paths:
                stored = await self._take(path, wanted=has_same_guards)
                if stored is not None:
                    # Whoever wrote it may have been killed before it was safe.
                    await self._backend.settle(path)
                    return stored
            number = _number(paths[-1]) + 1 if paths else 0
            path = manifest_path(manifest.key, variant=number, namespace=manifest.namespace)
            async with self._uses.holding(path):
                if await self._backend.create(path, content=record):
                    await self._uses.note(path, written_seconds=self._uses.now())
                    await self._end_least_used(paths)
                    return manifest
        raise StoreUnavailable(
            f"the store at {self._backend.location} says that {path} is there and does not list it; "
            "it has to be a storage whose listings show at once what was written"
        )

    async def variants(self, key: str, *, namespace: str) -> Variants:
        """Returns how many variants a key has in a namespace.

        Raises:
            InvalidRequest: `key` is not written as a key.
            StoreUnavailable: the store cannot be read.
        """
        paths = await self._list(key, namespaces=[namespace])
        has_room = len(paths) < MOST_VARIANTS or bool(await self._unused(paths))
        return Variants(count=len(paths), has_room=has_room)

    async def _end_least_used(self, paths: Sequence[str]) -> None:
        """Removes one of the manifests of a key, if there are too many. Where all are in use there is one more: it was
        begun when one was not.
        """
        if len(paths) >= MOST_VARIANTS:
            for path in await self._unused(paths):
                if await self._uses.end(path):
                    return

    async def _unused(self, paths: Sequence[str]) -> list[str]:
        """Those whose lease is over, the one that was used least recently first."""

        async def last_use(path: str) -> tuple[float, str]:
            found = [await self._backend.find_object(each) for each in (path, use_path(path))]
            told_seconds = max((each.modified_seconds for each in found if each is not None), default=0.0)
            return max(told_seconds, self._uses.used_seconds(path)), path

        uses = sorted(await few_at_a_time(last_use, paths))
        return [path for seconds, path in uses if not self._uses.has_lease(path, told_seconds=seconds)]

    async def withdraw(self, manifest: Manifest, *, reason: str) -> bool:
        """Sets a manifest aside with the reason. Returns False if it is not stored.

        Raises:
            StoreUnavailable: it cannot be moved.
        """

        async def is_it(stored: Manifest) -> bool:
            return stored == manifest

        for path in await self._list(manifest.key, namespaces=[manifest.namespace]):
            stored = await self._take(path, wanted=is_it)
            if stored is not None:
                await self._damage.withdraw(path, reason=reason)
                return True
        return False

    async def read(self, path: str) -> Manifest | None:
        """Returns the manifest at a path; None if it is gone, or damaged: then it is set aside.

        Raises:
            NewerRecord: this release cannot read it.
            OlderRecord: this release does not serve it.
            StoreUnavailable: the store cannot be read.
        """
        content = await self._backend.find(path)
        if content is None:
            return None
        try:
            manifest = read_record(content, key=key_of(path), namespace=namespace_of(path), with_guards=False)
            await self._guard_turns.check(manifest.guards)
        except (DamagedRecord, InvalidRequest):
            await self._damage.set_aside(path, examine=lambda file: _examine(file, path=path))
            return None
        return manifest

    async def find_by_prefix(self, prefix: str, *, namespaces: Sequence[str] | None = None) -> list[str]:
        """Returns stored keys that begin with `prefix`, sorted, at most MOST_KEYS; with namespaces, those that have a
        manifest in one of them, among the first MOST_LOOKED_AT.

        Raises:
            InvalidRequest: `prefix` cannot begin a key, or is too short to be looked for.
            StoreUnavailable: the store cannot be read.
        """
        if _PREFIX.fullmatch(prefix) is None:
            raise InvalidRequest(
                f"{prefix[:100]!r} does not begin a key: at least {SHORTEST_PREFIX} hexadecimal digits are expected,"
                " and no more than a key has"
            )
        keys: list[str] = []
        looked_at = 0
        for graph in await self._graphs(prefix):
            rests = await self._backend.folders(f"{MANIFESTS}/{graph}")
            # What else lies there is no key's.
            found = [key for rest in rests if (key := f"{graph}-{rest}").startswith(prefix) and is_key(key)]
            looked_at += len(found)
            keys += found if namespaces is None else await self._in_namespaces(found, namespaces=namespaces)
            if len(keys) >= MOST_KEYS or looked_at >= MOST_LOOKED_AT:
                break
        return keys[:MOST_KEYS]

    async def _in_namespaces(self, keys: Sequence[str], *, namespaces: Sequence[str]) -> list[str]:
        listed = await few_at_a_time(partial(self._list, namespaces=namespaces), keys[:MOST_LOOKED_AT])
        return [key for key, paths in zip(keys, listed, strict=False) if paths]

    async def _graphs(self, prefix: str) -> list[str]:
        if len(prefix) >= GRAPH_DIGITS:
            return [prefix[:GRAPH_DIGITS]]
        return await self._backend.folders(MANIFESTS, beginning=prefix)

    async def _not_ruled_out(
        self, objects: Sequence[StoredObject], *, namespaces: Sequence[str], hints: Sequence[int] | None
    ) -> Sequence[StoredObject]:
        """Those manifests of a key whose guards may hold, in their order. There may be any number of them, and many may
        ask at a time.
        """
        ordered = _ordered(objects, namespaces=namespaces)
        if hints is None or not ordered:
            return ordered
        known = ((stored, self._guards.find(stored)) for stored in ordered)
        left = await self._guard_turns.not_ruled_out(known, hints)
        if len(ordered) > _FEW:
            await self._guard_turns.rest()
        return left

    async def _list(self, key: str, *, namespaces: Sequence[str]) -> list[str]:
        """The paths of the manifests of a key in some namespaces, in their order."""
        return [stored.path for stored in _ordered(await self._stored(key), namespaces=namespaces)]

    async def _stored(self, key: str) -> Sequence[StoredObject]:
        return [stored async for stored in self._backend.objects(key_folder(key))]

    async def _take(self, path: str, *, wanted: Callable[[Manifest], Awaitable[bool]]) -> Manifest | None:
        """Returns the manifest at a path if it is wanted and can be served, and begins its lease."""
        async with self._uses.holding(path):
            try:
                manifest = await self.read(path)
            except (NewerRecord, OlderRecord):
                # It belongs to another farm that shares the storage, or did.
                return None
            if manifest is None or not await wanted(manifest) or not self._signing.is_trusted(manifest):
                return None
            if not await self._blobs.are_complete(blobs_of(manifest)):
                return None
            await self._uses.note(path)
            return manifest


def _ordered(objects: Iterable[StoredObject], *, namespaces: Sequence[str]) -> list[StoredObject]:
    """The manifests in some namespaces, in the order of these, and in that of their numbers, which have gaps where some
    are gone.
    """
    places = {namespace: place for place, namespace in enumerate(namespaces)}
    numbered = (each for each in objects if _is_numbered(each.path))
    ordered = [(places.get(namespace_of(each.path), -1), _number(each.path), each) for each in numbered]
    return [each for place, _, each in sorted(ordered, key=itemgetter(0, 1)) if place >= 0]


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])


def _is_numbered(path: str) -> bool:
    return _NUMBER.fullmatch(path.rpartition("/")[2]) is not None


async def _examine(file: IO[bytes], *, path: str) -> str:
    try:
        content = await asyncio.to_thread(file.read, LARGEST_IN_MEMORY_BYTES) or b""
        read_record(content, key=key_of(path), namespace=namespace_of(path))
    except DamagedRecord as error:
        return str(error)
    except (NewerRecord, OlderRecord):
        pass
    return ""
