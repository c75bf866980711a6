"""The interface of a store, as the gateway needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from compilefarm.core.contents import Content
from compilefarm.store.backend import Backend
from compilefarm.store.files import Readable, StagedBlob
from compilefarm.store.layout import DEFAULT_NAMESPACE
from compilefarm.store.variants import Variants
from compilefarm.v1.admin_service_pb2 import StoreUsage
from compilefarm.v1.manifest_pb2 import Check, Manifest

# Where artifacts are looked for when callers are not told apart.
EVERYBODYS = (DEFAULT_NAMESPACE,)


class ArtifactStore(Protocol):
    """Artifacts by key and blobs by digest.

    Every method raises StoreUnavailable if the storage cannot be read or written, and InvalidRequest for a key or a
    digest that is not written as one.
    """

    @property
    def shared(self) -> Backend:
        """Where gateways that use the same store keep what they tell each other, beside the artifacts."""

    async def find_manifest(
        self,
        key: str,
        *,
        namespaces: Sequence[str] = EVERYBODYS,
        hints: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Manifest | None:
        """Returns the manifest stored under a key, if all of its blobs are there; None is a miss. Callers share the
        object.

        Args:
            key: the key.
            namespaces: where to look, in this order.
            hints: values of the job's symbols, for which the guards of the artifact have to hold; None takes any.
            fresh: whether a miss has to be one at this moment: another gateway may have stored the artifact just now.
        """

    async def find_by_prefix(self, prefix: str, *, namespaces: Sequence[str] | None = None) -> list[str]:
        """Returns stored keys that begin with `prefix` (at least 6 characters), sorted, at most 20: those of some
        namespaces, or of any.

        They are not looked into: `find_manifest` may still find nothing that can be served.

        Raises:
            InvalidRequest: `prefix` is too short or cannot begin a key.
        """

    async def get_blob(self, digest: str) -> bytes:
        """Returns the bytes of a blob, checked against the digest.

        Raises:
            NotStored: there is no such blob, or its bytes no longer match.
        """

    def reading(self, digest: str) -> AbstractAsyncContextManager[Readable]:
        """Opens a blob, checked against the digest. A large one is not held in memory.

        Raises:
            NotStored: as `get_blob`.
        """

    async def find_size(self, digest: str) -> int | None:
        """Returns the size of a blob in bytes, without reading it; None if there is none."""

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        """Opens a file for the pieces of a blob that is going to be put."""

    async def put_staged(self, blob: StagedBlob, *, digest: str, namespace: str) -> None:
        """Stores the pieces that have arrived, like `put_blob`, for a namespace: they count as what it has until an
        artifact names them.
        """

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        """Passes if what is on its way may be put.

        Args:
            coming: how many bytes, by the namespace of who sends them.
            namespace: of who asks.

        Raises:
            StoreFull: there is no room for them.
        """

    async def put_blob(self, content: bytes, *, digest: str) -> None:
        """Stores a blob. Where it is stored already, nothing is written.

        Raises:
            DigestMismatch: `content` has another digest.
        """

    async def find_missing(self, digests: Sequence[str], *, namespace: str | None = None) -> list[str]:
        """Returns those of `digests` that are not stored, in their order, each once. The others count as what the
        namespace has that asks, if one is given, until an artifact names them.
        """

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, Content]) -> Manifest:
        """Stores an artifact in the namespace of its manifest, blobs first and the manifest last, so that nobody ever
        finds half of one.

        Args:
            manifest: its description.
            blobs: content by digest of what the manifest names; what is stored already may be left out.

        Returns:
            The manifest that is stored now: in each namespace the first writer of a key wins, among those with the same
            guards.

        Raises:
            DigestMismatch: a blob has another digest.
            InvalidRequest: the manifest has another format, or names blobs that are neither given nor stored, or that
                have other sizes.
        """

    async def find_variants(self, key: str, *, namespace: str) -> Variants:
        """Returns how many variants a key has in a namespace, and whether it may have another."""

    async def put_check(self, check: Check) -> None:
        """Stores the check of an artifact, in the namespace that it names."""

    async def find_checks(self, key: str, *, namespaces: Sequence[str] = EVERYBODYS) -> list[Check]:
        """Returns the checks of a key's artifacts in some namespaces, the latest last. Those of the last days, and
        those of artifacts that are still there.
        """

    async def withdraw(self, manifest: Manifest, *, reason: str) -> bool:
        """Withdraws an artifact: its key is a miss then. Returns False if it is not stored."""

    async def probe(self) -> None:
        """Passes if the storage can be written now."""

    async def usage(self) -> StoreUsage:
        """Returns how much is stored."""


class WrappingStore(ArtifactStore):
    """Passes everything on to another store. Wrappers override what they change."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    @property
    def shared(self) -> Backend:
        return self._store.shared

    async def find_manifest(
        self,
        key: str,
        *,
        namespaces: Sequence[str] = EVERYBODYS,
        hints: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Manifest | None:
        return await self._store.find_manifest(key, namespaces=namespaces, hints=hints, fresh=fresh)

    async def find_by_prefix(self, prefix: str, *, namespaces: Sequence[str] | None = None) -> list[str]:
        return await self._store.find_by_prefix(prefix, namespaces=namespaces)

    async def get_blob(self, digest: str) -> bytes:
        return await self._store.get_blob(digest)

    def reading(self, digest: str) -> AbstractAsyncContextManager[Readable]:
        return self._store.reading(digest)

    async def find_size(self, digest: str) -> int | None:
        return await self._store.find_size(digest)

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        return self._store.staging(digest)

    async def put_staged(self, blob: StagedBlob, *, digest: str, namespace: str) -> None:
        await self._store.put_staged(blob, digest=digest, namespace=namespace)

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        await self._store.reserve(coming, namespace=namespace)

    async def put_blob(self, content: bytes, *, digest: str) -> None:
        await self._store.put_blob(content, digest=digest)

    async def find_missing(self, digests: Sequence[str], *, namespace: str | None = None) -> list[str]:
        return await self._store.find_missing(digests, namespace=namespace)

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, Content]) -> Manifest:
        return await self._store.put_artifact(manifest, blobs=blobs)

    async def find_variants(self, key: str, *, namespace: str) -> Variants:
        return await self._store.find_variants(key, namespace=namespace)

    async def put_check(self, check: Check) -> None:
        await self._store.put_check(check)

    async def find_checks(self, key: str, *, namespaces: Sequence[str] = EVERYBODYS) -> list[Check]:
        return await self._store.find_checks(key, namespaces=namespaces)

    async def withdraw(self, manifest: Manifest, *, reason: str) -> bool:
        return await self._store.withdraw(manifest, reason=reason)

    async def probe(self) -> None:
        await self._store.probe()

    async def usage(self) -> StoreUsage:
        return await self._store.usage()
