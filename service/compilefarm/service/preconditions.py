"""Conditions under which a job may be compiled."""

from __future__ import annotations

from compilefarm.core.errors import ReadOnlyFarm
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.constants import require_constants
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.publishing import Publisher
from compilefarm.service.variants import VariantLimits
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.signing_policy import SigningPolicy

# Graphs whose tensors are looked for at a time; each looks for many.
_LOOKING = 8
_LOOKING_OF_ACCOUNT = 2


class Preconditions:
    """Checks that a compile can succeed and be stored.

    Args:
        store: has to have the tensors of graphs.
        publisher: knows whether artifacts can be stored.
        signing: is told that a manifest of the key will have to be signed.
        variants: how many a key may have.
        read_only: whether nothing is compiled.
    """

    def __init__(
        self,
        *,
        store: ArtifactStore,
        publisher: Publisher,
        signing: SigningPolicy,
        variants: VariantLimits,
        read_only: bool,
    ) -> None:
        self._store = store
        self._variants = variants
        self._publisher = publisher
        self._signing = signing
        self._read_only = read_only
        self._looking = FairSemaphore(
            "looking for tensors of graphs", places=_LOOKING, account_places=_LOOKING_OF_ACCOUNT
        )

    async def require(self, job: ActiveJob) -> None:
        """Passes if the artifact of a job could be made and stored.

        Raises:
            ReadOnlyFarm: nothing is compiled here.
            StoreUnavailable: artifacts cannot be stored or signed.
            MissingBlobs: tensors that the graph holds are not stored.
            Busy: its key has too many variants.
        """
        if self._read_only:
            raise ReadOnlyFarm(
                f"nothing that fits is stored under {job.key}, and this farm serves its store read-only: compile "
                "locally, or ask a farm that compiles"
            )
        await self._publisher.require_writable()
        await self._variants.require(job)
        if job.job.graph.constants:
            async with self._looking.acquired(job.request.caller.account):
                await require_constants(job.job, store=self._store, namespace=job.namespace)
        await self._signing.announce(job.key, namespace=job.namespace)
