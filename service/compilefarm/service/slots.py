"""The limit of workers that one tenant may have at a time.

Workers are shared by `fairness` when they are given away, and not taken back from a job that is not preemptible. So a
tenant that came first and alone would have all of them for as long as its compiles may take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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

    @property
    def counts_all(self) -> bool:
        """Whether all workers of a tenant count, and not those alone that fit."""
        return self.tenant_jobs is not None

    def has_room(self, *, own: int, fitting: int) -> bool:
        """Returns whether a tenant may have one more worker.

        Args:
            own: its jobs that have one, as far as they count.
            fitting: how many workers there are that fit.
        """
        if self.tenant_jobs is not None:
            return own < self.tenant_jobs
        is_last = own == fitting - 1 and own > 0
        return own < fitting and not (is_last and self.has_several_tenants())
