"""Jobs that were accepted and are done although nobody waits for them: kept on disk until they are done.

Whoever waits for a job asks again when the service was killed, and nobody does for a prewarm. An entry is a file whose
name ends with the digest of its content; it is there, flushed, before the job is acknowledged, and goes when the job
has a result. What is left of a service that was killed is done by the next one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import FarmError, InvalidRequest, JobCancelled, MissingBlobs, StoreUnavailable
from compilefarm.core.expressions import holds
from compilefarm.service.clock import Clock
from compilefarm.service.config import CannotStart
from compilefarm.service.flights import Flight, Source
from compilefarm.v1.job_pb2 import CompileFailure, Job
from compilefarm.v1.journal_pb2 import AcceptedJob

log = logging.getLogger(__name__)

# Nobody waits for a rollout any longer.
_KEPT = timedelta(days=7)
_LOCK = ".lock"
_STAGING = ".staging"
# Trying again cannot end otherwise.
_FINAL = (InvalidRequest, JobCancelled, MissingBlobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A job that was accepted.

    Attributes:
        name: of its file.
        accepted: the job.
    """

    name: str
    accepted: AcceptedJob


class Journal:
    """Accepted jobs in a folder of their own.

    Args:
        folder: the folder.
        clock: time.

    Raises:
        CannotStart: the folder cannot be used, or another service uses it.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._entries: dict[str, dict[str, Entry]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # It ends with the process, however that ends.
            self._lock = open(folder / _LOCK, "wb")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError as error:
            self._lock.close()
            raise CannotStart(
                f"another service uses {folder}: end it, or give this one another with --state"
            ) from error
        except OSError as error:
            raise CannotStart(
                f"accepted jobs cannot be kept in {folder} ({error.strerror}): name another folder with --state"
            ) from error

    def close(self) -> None:
        """Leaves the folder to the next service."""
        self._lock.close()

    def entries(self) -> list[Entry]:
        """What is not done yet, in the order in which it was accepted."""
        every = [entry for entries in self._entries.values() for entry in entries.values()]
        return sorted(every, key=lambda entry: entry.accepted.accepted.ToNanoseconds())

    async def keep(self, key: str, *, job: Job, tenant: str, namespaces: Sequence[str]) -> Entry:
        """Keeps a job that is about to be acknowledged.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        accepted = AcceptedJob(key=key, job=job, tenant=tenant, namespaces=namespaces)
        accepted.accepted.FromDatetime(self._clock.now())
        content = accepted.SerializeToString(deterministic=True)
        entry = Entry(name=f"{key}-{digest_of(content)}", accepted=accepted)
        try:
            await asyncio.to_thread(self._write, entry.name, content)
        except OSError as error:
            raise StoreUnavailable(
                f"the job cannot be kept in {self._folder} ({error.strerror}), so a restart could lose it: ask again "
                "when there is room"
            ) from error
        self._entries.setdefault(key, {})[entry.name] = entry
        return entry

    def remove(self, entry: Entry) -> None:
        """Forgets a job. What a power failure brings back is found in the store when it is asked for again."""
        entries = self._entries.get(entry.accepted.key, {})
        if entries.pop(entry.name, None) is not None:
            (self._folder / entry.name).unlink(missing_ok=True)
        if not entries:
            self._entries.pop(entry.accepted.key, None)

    def settle(self, flight: Flight) -> None:
        """Forgets the jobs for which a flight that is over has brought a result."""
        for entry in list(self._entries.get(flight.key, {}).values()):
            if flight.namespace in entry.accepted.namespaces and _is_done(flight, entry.accepted.job):
                self.remove(entry)

    def _write(self, name: str, content: bytes) -> None:
        staging = self._folder / f"{name}{_STAGING}"
        with open(staging, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staging.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read(self) -> None:
        for path in self._folder.iterdir():
            if path.name == _LOCK:
                continue
            accepted = _parse(path)
            if accepted is None or self._clock.now() - accepted.accepted.ToDatetime(self._clock.now().tzinfo) > _KEPT:
                log.warning("%s is given up: it is damaged, was never acknowledged, or is too old", path)
                path.unlink()
            else:
                self._entries.setdefault(accepted.key, {})[path.name] = Entry(name=path.name, accepted=accepted)


def _parse(path: Path) -> AcceptedJob | None:
    content = path.read_bytes()
    if path.name.rpartition("-")[2] != digest_of(content):
        return None
    try:
        return AcceptedJob.FromString(content)
    except DecodeError:
        return None


def _is_done(flight: Flight, job: Job) -> bool:
    try:
        landing = flight.landing()
    except FarmError as error:
        return isinstance(error, _FINAL)
    if isinstance(landing.result, CompileFailure):
        return landing.source is not Source.COMPILE or flight.hints == tuple(job.hints)
    return holds(landing.result.guards, job.hints)
