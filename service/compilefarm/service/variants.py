"""Bounds how many variants of a key there are, each of which costs every lookup of the key some microseconds."""

from __future__ import annotations

from compilefarm.core.errors import Busy
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock
from compilefarm.service.hourly_limits import HourlyLimits
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.variants import MOST_VARIANTS

# Beyond so many variants of a key in a namespace, one caller may have no more than these made within an hour: nobody
# has those of others go in less than half a day. Programs have some ten.
_MANY = MOST_VARIANTS // 4
_MANY_OF_ACCOUNT = 16
_RETRY_SECONDS = 3600.0


class VariantLimits:
    """Refuses compiles of keys that have too many variants.

    Args:
        store: has them.
        clock: time.
    """

    def __init__(self, store: ArtifactStore, *, clock: Clock) -> None:
        self._store = store
        self._made = HourlyLimits(most=_MANY_OF_ACCOUNT, clock=clock)

    async def require(self, job: ActiveJob) -> None:
        """Passes if another variant of the key of a job may be made.

        Raises:
            Busy: it may not.
            StoreUnavailable: the store cannot be read.
        """
        if not job.job.symbols:
            return
        variants = await self._store.find_variants(job.key, namespace=job.namespace)
        if variants.count < _MANY:
            return
        if not variants.has_room:
            raise _refusal(f"{job.key} has {variants.count} variants, all of which were used within the last hour")
        account = job.request.caller.account
        if not self._made.take(f"{job.key} {job.namespace} {account}"):
            whose = account or "this caller"
            raise _refusal(
                f"{job.key} has {variants.count} variants, of which {whose} had {_MANY_OF_ACCOUNT} made within the hour"
            )


def _refusal(problem: str) -> Busy:
    return Busy(
        f"{problem}: compile locally; those that were not used within an hour make room for others",
        retry_after_seconds=_RETRY_SECONDS,
    )
