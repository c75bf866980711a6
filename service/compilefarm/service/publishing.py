"""Stores finished artifacts, and remembers whether the store takes them."""

from __future__ import annotations

import logging

from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.pool import Artifact
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.manifest_pb2 import KeyPart, Manifest, VerifyTime

log = logging.getLogger(__name__)


def nothing_compiled(error: StoreUnavailable) -> StoreUnavailable:
    """The refusal of a job whose artifact the store would not take."""
    return StoreUnavailable(
        f"nothing is compiled, since the artifact could not be stored: {error}. What is stored is served; "
        "compile locally, and ask again when the store can be written, or have the farm run with --read-only"
    )


class Publisher:
    """Stores artifacts.

    Args:
        store: where.
        clock: time.
        farm_version: that manifests name.
    """

    def __init__(self, *, store: ArtifactStore, clock: Clock, farm_version: str) -> None:
        self._store = store
        self._clock = clock
        self._farm_version = farm_version
        # Whether the last artifact could not be stored.
        self._failed = False

    async def require_writable(self) -> None:
        """Passes unless an artifact could not be stored, and the store still cannot be written: no compile is wasted.

        Raises:
            StoreUnavailable: it cannot.
        """
        if not self._failed:
            return
        try:
            await self._store.probe()
        except StoreUnavailable as error:
            raise nothing_compiled(error) from error
        log.info("the store takes artifacts again")
        self._failed = False

    async def publish(self, artifact: Artifact, *, job: ActiveJob, verify_time: VerifyTime.ValueType) -> Manifest:
        """Stores a finished artifact.

        When that fails the artifact is given up, loudly: clients read its blobs from the store, so a manifest without
        them would only send them looking for what is not there. Remote stores retry by themselves before they fail.

        Raises:
            StoreUnavailable: it could not be stored.
        """
        try:
            manifest = self._describe(artifact, job=job, verify_time=verify_time)
            return await self._store.put_artifact(manifest, blobs=artifact.blobs)
        except StoreUnavailable as error:
            self._failed = True
            log.error("job %s: its artifact is lost; none is made until the store can be written: %s", job.key, error)
            raise StoreUnavailable(
                f"the compile of {job.key} succeeded but its artifact could not be stored and is lost ({error}); "
                "compile locally, and ask again when the store can be written"
            ) from error

    def _describe(self, artifact: Artifact, *, job: ActiveJob, verify_time: VerifyTime.ValueType) -> Manifest:
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        # A worker has no say in whose it is and who vouches for it.
        manifest.ClearField("signature")
        manifest.namespace = job.namespace
        del manifest.key_parts[:]
        key = job.request.key
        manifest.key = key.text
        manifest.key_format = key.format
        manifest.key_parts.extend(KeyPart(name=part.name, digest=part.digest) for part in key.parts)
        manifest.format = ARTIFACT_FORMAT
        manifest.farm_version = self._farm_version
        manifest.created.FromDatetime(self._clock.now())
        manifest.verify_time = verify_time
        return manifest
