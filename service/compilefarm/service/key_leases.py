"""Key leases: of the gateways that use the same store, one compiles a key, and the others wait for what comes of it.

A lease is an object that only one gateway can create. It holds for as long as the session of its gateway does. When
that is over without a result, another gateway creates the object with the next number. What a lease saves is work:
that nobody is served anything wrong does not depend on it, since the first artifact of a key is the one that stays.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from compilefarm.core.errors import StoreUnavailable
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.clock import Clock, pause
from compilefarm.service.publishing import nothing_compiled
from compilefarm.service.sessions import LOOK_SECONDS, RENEWAL_SECONDS, Peers, Session
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.layout import failure_path, lease_folder, lease_path, namespace_of
from compilefarm.v1.gateways_pb2 import FailureRecord, LeaseRecord
from compilefarm.v1.job_pb2 import CompileFailure

log = logging.getLogger(__name__)

# Of a lease, or a failure. NFS keeps what is deleted while somebody reads it, under a name of its own (.nfs...).
_NAME = re.compile(r"[0-9]{1,18}(\.failed)?")
# How often another gateway may be faster: each time, one lease of the key was begun.
_MOST_TRIALS = 100
# How long the failure of a compile lies there for gateways that wait for it, which look every LOOK_SECONDS.
TOLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLease:
    """A lease of another gateway.

    Attributes:
        path: where it lies.
        session: that of the gateway.
    """

    path: str
    session: str


class LeasedElsewhere(Exception):
    """Another gateway compiles the key.

    Attributes:
        lease: its lease.
    """

    def __init__(self, lease: ForeignLease) -> None:
        super().__init__(f"gateway {lease.session} compiles it")
        self.lease = lease


class StoredElsewhere(Exception):
    """Another gateway has stored an artifact that fits since the job was looked up."""


class KeyLease:
    """The lease of the key of one job, taken or not.

    Args:
        job: the job.
        leases: has the objects.
    """

    def __init__(self, job: ActiveJob, *, leases: KeyLeases) -> None:
        self._job = job
        self._leases = leases
        self._path: str | None = None

    async def take(self) -> None:
        """Takes the lease, unless this job has it.

        Raises:
            LeasedElsewhere: another gateway has it.
            StoredElsewhere: the key needs no compile any more.
            StoreUnavailable: the store cannot be read or written.
        """
        if self._path is None:
            self._path = await self._leases.create(self._job.key, namespace=self._job.namespace)
        if await self._leases.is_stored(self._job):
            raise StoredElsewhere

    async def release(self, failure: CompileFailure | None = None) -> None:
        """Leaves the key to others, with the failure in which the compile has ended, if it has."""
        path, self._path = self._path, None
        if path is not None:
            # A job that is given up while it is released still releases it.
            await asyncio.shield(self._leases.end(path, failure=failure, hints=self._job.job.hints))


class KeyLeases:
    """The leases of keys in a store.

    Args:
        store: where they lie.
        session: of this gateway.
        peers: the gateways that live.
        clock: time.
    """

    def __init__(self, store: ArtifactStore, *, session: Session, peers: Peers, clock: Clock) -> None:
        self._store = store
        self._backend = store.shared
        self._session = session
        self._peers = peers
        self._clock = clock
        # Those of this gateway, by the folder in which they lie; set when they are gone.
        self._own: dict[str, asyncio.Event] = {}
        # What is yet to be deleted, and since when that may be.
        self._due: dict[str, float] = {}

    @asynccontextmanager
    async def of(self, job: ActiveJob) -> AsyncIterator[KeyLease]:
        """The lease of a job's key; released when the context ends."""
        lease = KeyLease(job, leases=self)
        try:
            yield lease
        finally:
            await lease.release(job.result if isinstance(job.result, CompileFailure) else None)

    async def find_foreign(self, key: str, *, namespaces: Sequence[str]) -> ForeignLease | None:
        """Returns the lease of another gateway that compiles a key in one of some namespaces.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        folder = f"{lease_folder(key)}/"
        sight = await self._peers.look()
        for path in [each for each in sight.leases if each.startswith(folder) and namespace_of(each) in namespaces]:
            session = await self._session_of(path)
            if session != self._session.name and session in sight.alive:
                return ForeignLease(path=path, session=session)
        return None

    async def result(self, foreign: ForeignLease, *, hints: Sequence[int]) -> CompileFailure | None:
        """Waits until another gateway's lease is over. Returns the failure in which its compile ended, for the same
        values of the job's symbols; None if it ended otherwise.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        is_over = False
        while not is_over:
            await pause(LOOK_SECONDS, clock=self._clock)
            sight = await self._peers.look()
            is_over = foreign.path not in sight.leases or foreign.session not in sight.alive
        return await self._find_failure(foreign.path, hints=hints)

    async def is_stored(self, job: ActiveJob) -> bool:
        """Returns whether an artifact that fits a job is stored at this moment.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        namespaces = job.request.caller.namespaces
        found = await self._store.find_manifest(job.key, namespaces=namespaces, hints=job.job.hints, fresh=True)
        return found is not None

    async def create(self, key: str, *, namespace: str) -> str:
        """Creates the lease of a key, and returns its path.

        Raises:
            LeasedElsewhere: another gateway has one.
            StoreUnavailable: the store cannot be read or written.
        """
        folder = lease_path(key, number=0, namespace=namespace).rpartition("/")[0]
        while (own := self._own.get(folder)) is not None:
            await own.wait()
        self._own[folder] = asyncio.Event()
        creating = asyncio.create_task(self._create_own(key, namespace=namespace, folder=folder))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            # It may be written all the same, and nobody else would end it.
            creating.add_done_callback(self._abandon)
            raise

    async def end(self, path: str, *, failure: CompileFailure | None, hints: Sequence[int]) -> None:
        """Ends a lease of this gateway. Where the store cannot be written that is done later."""
        try:
            if failure is not None:
                await self._tell(FailureRecord(failure=failure, hints=hints), path=failure_path(path))
            await self._delete(path)
        finally:
            self._forget(path.rpartition("/")[0])

    async def run(self) -> None:
        """Ends for ever what could not be ended when it was over, as soon as that can be done."""
        while True:
            await pause(RENEWAL_SECONDS, clock=self._clock)
            now_seconds = self._clock.monotonic()
            for path in [path for path, since in self._due.items() if since <= now_seconds]:
                await self._delete(path)

    async def _create_own(self, key: str, *, namespace: str, folder: str) -> str:
        try:
            await self._session.require()
            return await self._create(key, namespace=namespace)
        except BaseException as error:
            self._forget(folder)
            if isinstance(error, StoreUnavailable):
                raise nothing_compiled(error) from error
            raise

    def _abandon(self, creating: asyncio.Task[str]) -> None:
        """Has a lease ended whose job was given up while it was written."""
        if not creating.cancelled() and creating.exception() is None:
            path = creating.result()
            self._due[path] = self._clock.monotonic()
            self._forget(path.rpartition("/")[0])

    async def _tell(self, record: FailureRecord, *, path: str) -> None:
        try:
            await self._backend.create(path, content=record.SerializeToString(deterministic=True))
        except StoreUnavailable as error:
            log.warning("another gateway that waits for this compile will do it again: %s", error)
        else:
            # Each look at what others compile goes through all that lies there.
            self._due[path] = self._clock.monotonic() + TOLD_SECONDS

    async def _delete(self, path: str) -> None:
        try:
            await self._backend.delete(path)
        except StoreUnavailable as error:
            log.warning("the lease %s is over, and other gateways wait until it can be deleted: %s", path, error)
            self._due[path] = self._clock.monotonic()
        else:
            self._due.pop(path, None)

    async def _create(self, key: str, *, namespace: str) -> str:
        record = LeaseRecord(session=self._session.name, nonce=secrets.token_hex(8))
        content = record.SerializeToString(deterministic=True)
        for _ in range(_MOST_TRIALS):
            before = await self._list(key, namespace=namespace)
            await self._require_free(before)
            path = lease_path(key, number=_number(before[-1]) + 1 if before else 0, namespace=namespace)
            # The answer to a write may be lost; then the storage's client tries again, and finds what it has written.
            if await self._backend.create(path, content=content) or await self._backend.find(path) == content:
                for each in before:
                    await self._delete(each)
                return path
        raise StoreUnavailable(
            f"the store at {self._backend.location} says that {path} is there and does not list it; "
            "it has to be a storage whose listings show at once what was written"
        )

    async def _require_free(self, paths: Sequence[str]) -> None:
        for path in paths:
            session = "" if _is_failure(path) else await self._session_of(path)
            # One of this gateway is over, since it has one of a key at a time. Who lives is asked after the lease was
            # read: a gateway begins its session before its leases.
            is_foreign = session not in ("", self._session.name)
            if is_foreign and session in (await self._peers.look(fresh=True)).alive:
                raise LeasedElsewhere(ForeignLease(path=path, session=session))

    async def _list(self, key: str, *, namespace: str) -> list[str]:
        """The leases of a key in a namespace, and failures that were left for others, in order."""
        paths = [listed.path async for listed in self._backend.objects(lease_folder(key))]
        named = (path for path in paths if _NAME.fullmatch(path.rpartition("/")[2]))
        return sorted((path for path in named if namespace_of(path) == namespace), key=_number)

    async def _session_of(self, path: str) -> str:
        """The session that a lease names; empty if the lease is gone or cannot be read."""
        content = await self._backend.find(path)
        try:
            return "" if content is None or _is_failure(path) else LeaseRecord.FromString(content).session
        except DecodeError as error:
            log.warning("%s cannot be read and is passed over: %s", path, error)
            return ""

    async def _find_failure(self, path: str, *, hints: Sequence[int]) -> CompileFailure | None:
        content = await self._backend.find(failure_path(path))
        try:
            record = FailureRecord.FromString(content or b"")
        except DecodeError as error:
            log.warning("%s cannot be read and is passed over: %s", failure_path(path), error)
            return None
        is_meant = record.HasField("failure") and list(record.hints) == list(hints)
        return record.failure if is_meant else None

    def _forget(self, folder: str) -> None:
        self._own.pop(folder).set()


def _is_failure(path: str) -> bool:
    return not path.rpartition("/")[2].isdecimal()


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])
