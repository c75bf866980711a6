"""The store: blobs, and manifests on top of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from compilefarm.core.artifacts import ARTIFACT_FORMAT, blobs_of
from compilefarm.core.contents import Content
from compilefarm.core.errors import InvalidRequest, StoreUnavailable
from compilefarm.store.artifact_store import EVERYBODYS, ArtifactStore
from compilefarm.store.backend import Backend
from compilefarm.store.blobs import BlobStore, few_at_a_time
from compilefarm.store.checks import CheckStore
from compilefarm.store.counting import CountingBackend
from compilefarm.store.damage import Damage
from compilefarm.store.files import Readable, StagedBlob
from compilefarm.store.layout import BLOBS, MANIFESTS
from compilefarm.store.manifests import ManifestStore
from compilefarm.store.probing import probe
from compilefarm.store.signing_policy import SigningPolicy
from compilefarm.store.uses import Uses
from compilefarm.store.variants import Variants
from compilefarm.v1.admin_service_pb2 import StoreUsage
from compilefarm.v1.manifest_pb2 import Check, Manifest

# Of large contents, so much is in memory at a time.
PIECE_BYTES = 1024 * 1024


class ContentAddressedStore(ArtifactStore):
    """Artifacts in a backend that counts BLOBS and MANIFESTS.

    Attributes:
        blobs: the blobs.
        manifests: the manifests.
        checks: what checks found.
        uses: who relies on what.

    Args:
        backend: where everything lies.
        uses: who relies on what.
        damage: where damaged objects go.
        signing: how manifests are signed, and which are served.
    """

    def __init__(self, backend: CountingBackend, *, uses: Uses, damage: Damage, signing: SigningPolicy) -> None:
        self._backend = backend
        self._damage = damage
        self.uses = uses
        self.blobs = BlobStore(backend, uses=uses, damage=damage)
        self.checks = CheckStore(backend)
        self.manifests = ManifestStore(backend, blobs=self.blobs, uses=uses, damage=damage, signing=signing)

    @property
    def shared(self) -> Backend:
        return self._backend

    async def find_manifest(
        self,
        key: str,
        *,
        namespaces: Sequence[str] = EVERYBODYS,
        hints: Sequence[int] | None = None,
        fresh: bool = False,
    ) -> Manifest | None:
        del fresh
        return await self.manifests.find(key, namespaces=namespaces, hints=hints)

    async def find_by_prefix(self, prefix: str, *, namespaces: Sequence[str] | None = None) -> list[str]:
        return await self.manifests.find_by_prefix(prefix, namespaces=namespaces)

    async def get_blob(self, digest: str) -> bytes:
        return await self.blobs.get(digest)

    def reading(self, digest: str) -> AbstractAsyncContextManager[Readable]:
        return self.blobs.reading(digest)

    async def find_size(self, digest: str) -> int | None:
        return await self.blobs.find_size(digest)

    def staging(self, digest: str) -> AbstractAsyncContextManager[StagedBlob]:
        return self.blobs.staging(digest)

    async def put_staged(self, blob: StagedBlob, *, digest: str, namespace: str) -> None:
        del namespace
        await self.blobs.put_staged(blob, digest=digest)

    async def reserve(self, coming: Mapping[str, int], *, namespace: str) -> None:
        """Passes: this store has no limit."""

    async def put_blob(self, content: bytes, *, digest: str) -> None:
        await self.blobs.put(content, digest=digest)

    async def find_missing(self, digests: Sequence[str], *, namespace: str | None = None) -> list[str]:
        del namespace
        return await self.blobs.find_missing(digests)

    async def put_artifact(self, manifest: Manifest, *, blobs: Mapping[str, Content]) -> Manifest:
        if manifest.format != ARTIFACT_FORMAT:
            raise InvalidRequest(
                f"the artifact of {manifest.key} has format {manifest.format}, this store keeps format "
                f"{ARTIFACT_FORMAT}: run the same release of Compilefarm on the service and its workers"
            )
        await self._put_blobs(blobs)
        if not await self.blobs.secure(wanted := list(blobs_of(manifest))):
            if all(blob.digest in blobs and len(blobs[blob.digest]) == blob.size_bytes for blob in wanted):
                raise StoreUnavailable(
                    f"the store at {self._backend.location} does not have what was written to it just now, or says so: "
                    "look for who else writes or removes objects there, and whether the service is sound"
                )
            raise InvalidRequest(
                f"the manifest of {manifest.key} names blobs that did not come with it, or in other sizes: "
                "the worker has to hand over everything that its manifest names"
            )
        return await self.manifests.add(manifest)

    async def _put_blobs(self, blobs: Mapping[str, Content]) -> None:
        await few_at_a_time(lambda blob: self._put_content(blob[1], digest=blob[0]), blobs.items())

    async def _put_content(self, content: Content, *, digest: str) -> None:
        if isinstance(content, bytes):
            await self.blobs.put(content, digest=digest)
            return
        async with self.blobs.staging(digest) as staged:
            for start in range(0, len(content), PIECE_BYTES):
                await staged.write(await asyncio.to_thread(content.__getitem__, slice(start, start + PIECE_BYTES)))
            await self.blobs.put_staged(staged, digest=digest)

    async def find_variants(self, key: str, *, namespace: str) -> Variants:
        return await self.manifests.variants(key, namespace=namespace)

    async def put_check(self, check: Check) -> None:
        await self.checks.put(check)

    async def find_checks(self, key: str, *, namespaces: Sequence[str] = EVERYBODYS) -> list[Check]:
        return await self.checks.find(key, namespaces=namespaces)

    async def withdraw(self, manifest: Manifest, *, reason: str) -> bool:
        return await self.manifests.withdraw(manifest, reason=reason)

    async def probe(self) -> None:
        await probe(self._backend)

    async def usage(self) -> StoreUsage:
        blobs = self._backend.count_of(BLOBS)
        return StoreUsage(
            location=self._backend.location,
            artifacts=self._backend.count_of(MANIFESTS).objects,
            blobs=blobs.objects,
            size_bytes=blobs.size_bytes,
            corrupt_blobs=self._damage.blobs,
            corrupt_manifests=self._damage.manifests,
        )
