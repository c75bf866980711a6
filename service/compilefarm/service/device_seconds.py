"""How long devices of workers were used, and how long they need not have been, by tenant and namespace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from compilefarm.service.active_job import ActiveJob, State
from compilefarm.service.callers import Caller
from compilefarm.service.clock import Clock
from compilefarm.service.requests import AdmittedRequest
from compilefarm.v1.compile_service_pb2 import Outcome
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest

# Tenants may be what callers say, and each is a time series for whoever reads the figures.
MOST_USERS = 1000
OTHERS = "(others)"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class User:
    """For whom devices are used.

    Attributes:
        tenant: of the request; empty if it named none, OTHERS beyond MOST_USERS.
        namespace: in which the artifacts lie; empty where there are none.
        device: the kind of device, "cpu" or "cuda".
    """

    tenant: str
    namespace: str
    device: str


class DeviceSeconds:
    """Seconds by user. Satisfies JobObserver and RequestObserver.

    Attributes:
        spent: jobs of the user had a worker, to compile or to verify, whatever came of it. A worker has one GPU; one
            for CPUs has its share of the processors of its machine.
        avoided: workers took to make what the user was then served without a compile for it.

    Args:
        clock: that of the jobs.
    """

    def __init__(self, clock: Clock) -> None:
        self.spent: Counter[User] = Counter()
        self.avoided: Counter[User] = Counter()
        self._clock = clock
        # When each job that runs got its worker.
        self._since_seconds: dict[ActiveJob, float] = {}
        self._users: set[User] = set()

    def changed(self, job: ActiveJob, *, before: State, cause: Exception | None) -> None:
        """See JobObserver.changed."""
        del cause
        now_seconds = self._clock.monotonic()
        if before is State.RUNNING:
            user = self._user(job.job, tenant=job.tenant, namespace=job.namespace)
            _add(self.spent, user, seconds=now_seconds - self._since_seconds.pop(job))
        if job.state is State.RUNNING:
            self._since_seconds[job] = now_seconds

    def missed(self, request: AdmittedRequest, *, joins: bool) -> None:
        """See RequestObserver.missed."""

    def answered(self, request: AdmittedRequest, *, outcome: Outcome.ValueType, manifest: Manifest | None) -> None:
        """See RequestObserver.answered."""
        if manifest is not None and outcome != Outcome.OUTCOME_COMPILED:
            seconds = sum(timing.seconds for timing in manifest.timings)
            _add(self.avoided, self._user_of(request.job, caller=request.caller), seconds=seconds)

    def _user_of(self, job: Job, *, caller: Caller) -> User:
        return self._user(job, tenant=caller.tenant, namespace=caller.namespace)

    def _user(self, job: Job, *, tenant: str, namespace: str) -> User:
        device = "cuda" if job.environment.HasField("cuda") else "cpu"
        user = User(tenant=tenant, namespace=namespace, device=device)
        if user not in self._users and len(self._users) >= MOST_USERS:
            return User(tenant=OTHERS, namespace=namespace, device=device)
        self._users.add(user)
        return user


def _add(counter: Counter[User], user: User, *, seconds: float) -> None:
    counter[user] += seconds  # type: ignore[assignment]  # Counter adds floats as well
