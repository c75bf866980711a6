"""Environments that the operator has declared: jobs for them wait although there is no worker, until there is one.

What such an environment looks like is learned from its first worker, and kept in the store for the time when there is
none, and for other gateways.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.environments import differences
from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.pool import DeclaredEnvironment, WorkerPool, WorkerView
from compilefarm.service.clock import Clock, pause
from compilefarm.store.backend import Backend
from compilefarm.store.layout import ENVIRONMENTS
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.gateways_pb2 import EnvironmentRecord

log = logging.getLogger(__name__)

LEARN_SECONDS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentEnvironment:
    """A declared environment that has no worker at present.

    Attributes:
        declared: what is said of it.
        seen: what its last worker was; None if there never was one.
    """

    declared: DeclaredEnvironment
    seen: EnvironmentRecord | None

    @property
    def name(self) -> str:
        """A name like that of a worker, which no worker has."""
        return f"({self.declared.name})"

    @property
    def awaited(self) -> str:
        """What a job waits for that could be done there, for people."""
        what = "there is none at present" if self.seen is not None else "it is declared, not seen yet"
        return f"a worker of the environment {self.declared.name}: {what}"

    def may_fit(self, wanted: Environment) -> bool:
        """Returns whether a worker of it could do a job: for one that was not seen yet, as far as its device says."""
        if self.seen is not None:
            return not differences(wanted=wanted, offered=self.seen.environment)
        return wanted.HasField("cuda") == (self.declared.device == "cuda")

    def view(self) -> WorkerView:
        """A worker of it that is on its way."""
        return WorkerView(
            name=self.name,
            state=WorkerState.WORKER_STATE_STARTING,
            environment=None if self.seen is None else self.seen.environment,
            environment_name=self.declared.name,
            vocabulary=None if self.seen is None else self.seen.vocabulary,
        )


class DeclaredEnvironments:
    """The environments that are declared, and what is known of them.

    Args:
        declared: what is declared.
        backend: where what was learned is kept.
        clock: time.
    """

    def __init__(self, declared: Sequence[DeclaredEnvironment], *, backend: Backend, clock: Clock) -> None:
        self._declared = {each.name: each for each in declared}
        self._backend = backend
        self._clock = clock
        self._seen: dict[str, EnvironmentRecord] = {}

    def absent(self, workers: Sequence[WorkerView]) -> list[AbsentEnvironment]:
        """Returns the environments of which none of some workers is, in the order in which they were declared."""
        if not self._declared:
            return []
        present = {worker.environment_name for worker in workers}
        missing = [each for name, each in self._declared.items() if name not in present]
        return [AbsentEnvironment(declared=each, seen=self._seen.get(each.name)) for each in missing]

    async def run(self, pool: WorkerPool) -> None:
        """Learns for ever what the workers of a pool are, and from other gateways what theirs are."""
        while self._declared:
            try:
                await self.learn(pool.workers())
            except StoreUnavailable as error:
                log.warning("what environments look like cannot be kept, or learned from other gateways: %s", error)
            await pause(LEARN_SECONDS, clock=self._clock)

    async def learn(self, workers: Sequence[WorkerView]) -> None:
        """Keeps what workers are, and reads what is kept of environments that have none.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        for each in self.absent(workers):
            await self._recall(each.declared.name)
        for worker in workers:
            if worker.environment_name in self._declared and worker.environment is not None:
                record = EnvironmentRecord(environment=worker.environment, vocabulary=worker.vocabulary)
                await self._keep(worker.environment_name, record)

    async def _keep(self, name: str, record: EnvironmentRecord) -> None:
        if self._seen.get(name) == record:
            return
        self._seen[name] = record
        content = record.SerializeToString(deterministic=True)
        path = f"{ENVIRONMENTS}/{name}/{digest_of(content)}"
        others = [stored.path async for stored in self._backend.objects(f"{ENVIRONMENTS}/{name}")]
        await self._backend.create(path, content=content)
        for other in others:
            if other != path:
                await self._backend.delete(other)

    async def _recall(self, name: str) -> None:
        kept = [stored async for stored in self._backend.objects(f"{ENVIRONMENTS}/{name}")]
        for stored in sorted(kept, key=lambda each: each.modified_seconds):
            content = await self._backend.find(stored.path)
            if content is not None and (record := _read(content, path=stored.path)) is not None:
                self._seen[name] = record


def _read(content: bytes, *, path: str) -> EnvironmentRecord | None:
    if digest_of(content) != path.rpartition("/")[2]:
        log.warning("%s is damaged and passed over", path)
        return None
    try:
        return EnvironmentRecord.FromString(content)
    except DecodeError as error:
        log.warning("%s cannot be read and is passed over: %s", path, error)
        return None
