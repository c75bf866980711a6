"""The limit of workers that one tenant may have at a time.

Workers are shared by `fairness` when they are given away, and not taken back from a job that is not preemptible. So a
tenant that came first and alone would have all of them for as long as its compiles may take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compilefarm.service.active_job import ActiveJob
from compilefarm.service.leases import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The limit. Preemptible jobs are not counted, and not held back: their workers can be taken back at any time.

    Attributes:
        tenant_jobs: jobs of one tenant that may have a worker; None: where there are several tenants, all but one of
            the workers that fit, and at least one.
        has_several_tenants: whether there are several.
    """

    tenant_jobs: int | None
    has_several_tenants: Callable[[], bool]

    def has_room(self, job: ActiveJob, *, fitting: Sequence[str], leases: Mapping[str, Lease]) -> bool:
        """Returns whether a job may have one more worker.

        Args:
            job: the job.
            fitting: the workers that can do it.
            leases: the jobs that have a worker, by its name.
        """
        if job.priority.is_preemptible:
            return True
        held = [leases[name] for name in (leases if self.tenant_jobs is not None else fitting) if name in leases]
        own = sum(_counts_for(job, lease.job) for lease in held)
        if self.tenant_jobs is not None:
            return own < self.tenant_jobs
        is_last = own == len(fitting) - 1 and own > 0
        return own < len(fitting) and not (is_last and self.has_several_tenants())


def _counts_for(job: ActiveJob, other: ActiveJob) -> bool:
    return other.tenant == job.tenant and not other.priority.is_preemptible
