"""Withdraws artifacts that were found wrong, and keeps the reason."""

from __future__ import annotations

import logging

from compilefarm.core.artifacts import digest_of_manifest
from compilefarm.core.errors import StoreUnavailable
from compilefarm.service.clock import Clock
from compilefarm.service.counters import Counters
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind
from compilefarm.v1.manifest_pb2 import Check, Manifest

log = logging.getLogger(__name__)


class Withdrawals:
    """Withdraws artifacts. The next one of a key is verified before it is served.

    Args:
        store: where they lie.
        counters: counts them.
        clock: time.
    """

    def __init__(self, *, store: ArtifactStore, counters: Counters, clock: Clock) -> None:
        self._store = store
        self._counters = counters
        self._clock = clock

    async def withdraw(self, key: str, *, namespace: str, reason: str) -> bool:
        """Takes the artifact of a key out of use that was found wrong elsewhere. False if there is none in the
        namespace.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        manifest = await self._store.find_manifest(key, namespaces=[namespace])
        if manifest is None:
            return False
        check = Check(
            key=key,
            namespace=namespace,
            manifest_digest=digest_of_manifest(manifest),
            failed=CompileFailure(kind=FailureKind.FAILURE_KIND_VERIFICATION, message=reason),
        )
        check.ended.FromDatetime(self._clock.now())
        await self.keep(check)
        return await self.withdraw_artifact(manifest, reason=reason)

    async def keep(self, check: Check) -> None:
        """Keeps why an artifact is going to be taken out of use: whoever is killed in between leaves the reason. Where
        it cannot be written, as on a full disk, the artifact goes all the same.
        """
        try:
            await self._store.put_check(check)
        except StoreUnavailable as error:
            log.error("job %s: why its artifact is withdrawn could not be kept: %s", check.key, error)

    async def withdraw_artifact(self, manifest: Manifest, *, reason: str) -> bool:
        """Takes an artifact out of use. False if somebody else has.

        Raises:
            StoreUnavailable: the store cannot be written.
        """
        if not await self._store.withdraw(manifest, reason=reason):
            return False
        self._counters.withdrawn += 1
        log.error("job %s: its artifact is withdrawn: %s", manifest.key, reason)
        return True
