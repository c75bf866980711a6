"""The journal: prewarms that were accepted, on disk until they are done.

A client that waits for a job asks again after a restart, but nobody waits for a prewarm. An entry is a file whose
name begins with the key and ends with the digest of its content; it is there, flushed, before the job is acknowledged,
and goes when the job has a result. What is left of a service that was killed is done by the next one.

Requests for the same key, namespaces and hints share an entry, which counts for the account that asked first. The
content of entries is on disk alone and is read when it is needed.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import Busy, StoreUnavailable
from compilefarm.core.keys import Key
from compilefarm.service.clock import Clock
from compilefarm.service.config import CannotStart
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.journal_pb2 import AcceptedJob

log = logging.getLogger(__name__)

# Nobody waits for a rollout any longer.
_KEPT = timedelta(days=7)
_LOCK = ".lock"
_STAGING = ".staging"
MOST_ENTRIES = 10_000
MOST_BYTES = 1024 * 1024 * 1024
# Of these, so much is for one account at most.
ACCOUNT_SHARE = 1 / 4
_RETRY_SECONDS = 60.0
_KEY_LENGTH = 16 + 1 + 64
_ACCOUNT_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An accepted prewarm.

    Attributes:
        name: of its file.
        size_bytes: of the file.
    """

    name: str
    size_bytes: int

    @property
    def key(self) -> str:
        """The key of the job."""
        return self.name[:_KEY_LENGTH]

    @property
    def account(self) -> str:
        """The digits of the account for which it counts; empty in files of older releases, which do not say it."""
        return self.name[_KEY_LENGTH + 1 :].rpartition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an artifact has to be to settle an entry.

    Attributes:
        namespaces: in which the artifact may lie.
        hints: for which it has to be.
    """

    namespaces: Sequence[str]
    hints: Sequence[int]


class Journal:
    """Accepted prewarms as files of a folder.

    Args:
        folder: the folder.
        clock: time.
        most_entries: that are kept of all accounts.
        most_bytes: that these may have.

    Raises:
        CannotStart: the folder cannot be used, or another service uses it.
    """

    def __init__(
        self, folder: Path, *, clock: Clock, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        # By what they are shared by; those of a service before this one by their names.
        self._entries: dict[str, JournalEntry] = {}
        # How many requests share an entry.
        self._shares: dict[str, int] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        # By name of the entry. Those of a service before this one are known once they were read.
        self._wanted: dict[str, Wanted] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # It ends with the process, however that ends.
            self._lock = open(folder / _LOCK, "wb")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._list()
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

    def entries(self) -> list[JournalEntry]:
        """Returns the entries that are not done, in the order in which they were accepted."""
        return list(self._entries.values())

    def read(self, entry: JournalEntry) -> AcceptedJob | None:
        """Reads an entry; None if it is gone, damaged or too old: then it is forgotten."""
        try:
            accepted = _parse(self._folder / entry.name)
        except FileNotFoundError:
            return None
        if accepted is not None and accepted.namespaces and not self._is_old(accepted):
            self._wanted[entry.name] = _wanted_of(accepted)
            return accepted
        log.warning(
            "%s is given up: it is damaged, was never acknowledged, says no namespace, or is too old", entry.name
        )
        self.forget(entry)
        return None

    async def keep(self, key: Key, *, job: Job, tenant: str, namespaces: Sequence[str], account: str) -> JournalEntry:
        """Keeps a job that is about to be acknowledged, unless it is kept already.

        Args:
            key: of the job.
            job: what is to be done.
            tenant: for whom.
            namespaces: where its artifact may lie.
            account: on which the entry goes.

        Raises:
            Busy: too much is kept, of the account or of all.
            StoreUnavailable: it cannot be written.
        """
        shared_by = _shared_by(key.text, job=job, namespaces=namespaces)
        if shared_by not in self._entries:
            accepted = AcceptedJob(key=key.text, job=job, tenant=tenant, namespaces=namespaces, key_format=key.format)
            accepted.accepted.FromDatetime(self._clock.now())
            self._add(accepted, shared_by=shared_by, account=account)
        entry = self._entries[shared_by]
        self._shares[shared_by] = self._shares.get(shared_by, 0) + 1
        if shared_by in self._writing:
            await self._written(entry, writing=self._writing[shared_by])
        return entry

    def remove(self, entry: JournalEntry) -> None:
        """Forgets a job for one request that shares it. What a power failure brings back is found in the store when it
        is asked for again.
        """
        shared_by = self._find(entry)
        if shared_by is None:
            return
        self._shares[shared_by] = self._shares.get(shared_by, 1) - 1
        if self._shares[shared_by] <= 0:
            self.forget(entry)

    def entries_of(self, key: str) -> list[JournalEntry]:
        """Returns the entries of a key."""
        return [entry for entry in self._entries.values() if entry.key == key]

    def find_wanted(self, entry: JournalEntry) -> Wanted | None:
        """Returns what settles an entry; None if the entry was not read yet."""
        return self._wanted.get(entry.name)

    def forget(self, entry: JournalEntry) -> None:
        """Forgets a job that is done, for all who share it."""
        shared_by = self._find(entry)
        if shared_by is not None:
            del self._entries[shared_by]
            self._shares.pop(shared_by, None)
            self._wanted.pop(entry.name, None)
            (self._folder / entry.name).unlink(missing_ok=True)

    async def _written(self, entry: JournalEntry, *, writing: asyncio.Task[None]) -> None:
        try:
            # Whoever goes away takes nothing from those who share it.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Nothing was acknowledged, and nobody begins the job.
            writing.add_done_callback(lambda _: self.remove(entry))
            raise

    def _add(self, accepted: AcceptedJob, *, shared_by: str, account: str) -> None:
        content = accepted.SerializeToString(deterministic=True)
        digits = digest_of(account.encode())[:_ACCOUNT_LENGTH]
        entry = JournalEntry(name=f"{accepted.key}-{digits}-{digest_of(content)}", size_bytes=len(content))
        own = [known for known in self._entries.values() if known.account == digits]
        self._check_room([*own, entry], share=ACCOUNT_SHARE, whose=account or "this caller")
        self._check_room([*self._entries.values(), entry], share=1, whose="all callers together")
        # It counts while it is being written, too.
        self._entries[shared_by] = entry
        self._wanted[entry.name] = _wanted_of(accepted)
        writing = asyncio.create_task(self._write_out(entry, content), name=f"journal entry {entry.name}")
        self._writing[shared_by] = writing
        writing.add_done_callback(partial(self._end_writing, shared_by))

    def _check_room(self, entries: Sequence[JournalEntry], *, share: float, whose: str) -> None:
        size_bytes = sum(entry.size_bytes for entry in entries)
        if len(entries) > share * self._most_entries or size_bytes > share * self._most_bytes:
            raise Busy(
                f"{len(entries) - 1} prewarm jobs of {whose} are kept until they are done, and no more can be: ask "
                "again when some are",
                retry_after_seconds=_RETRY_SECONDS,
            )

    async def _write_out(self, entry: JournalEntry, content: bytes) -> None:
        try:
            await asyncio.to_thread(self._write, entry.name, content)
        except OSError as error:
            self.forget(entry)
            raise StoreUnavailable(
                f"the job cannot be kept in {self._folder} ({error.strerror}), so a restart could lose it: ask again "
                "when there is room"
            ) from error

    def _end_writing(self, shared_by: str, task: asyncio.Task[None]) -> None:
        del self._writing[shared_by]
        if not task.cancelled():
            # Those who wait may all be gone; asyncio must not complain that nobody looked at the error.
            task.exception()

    def _find(self, entry: JournalEntry) -> str | None:
        return next((shared_by for shared_by, known in self._entries.items() if known is entry), None)

    def _is_old(self, accepted: AcceptedJob) -> bool:
        now = self._clock.now()
        return now - accepted.accepted.ToDatetime(now.tzinfo) > _KEPT

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

    def _list(self) -> None:
        for entry in _listed(self._folder):
            if entry.name.endswith(_STAGING):
                log.warning("%s is given up: it was never acknowledged", entry.name)
                (self._folder / entry.name).unlink()
            else:
                self._entries[entry.name] = entry


def _listed(folder: Path) -> Iterator[JournalEntry]:
    """The files of a folder, the oldest first."""
    with os.scandir(folder) as found:
        files = [(file.stat(), file.name) for file in found if not file.name.startswith(".")]
    for status, name in sorted(files, key=lambda file: (file[0].st_mtime_ns, file[1])):
        yield JournalEntry(name=name, size_bytes=status.st_size)


def _shared_by(key: str, *, job: Job, namespaces: Sequence[str]) -> str:
    return f"{key} {','.join(namespaces)} {','.join(map(str, job.hints))}"


def _wanted_of(accepted: AcceptedJob) -> Wanted:
    return Wanted(namespaces=tuple(accepted.namespaces), hints=tuple(accepted.job.hints))


def _parse(path: Path) -> AcceptedJob | None:
    content = path.read_bytes()
    if path.name.rpartition("-")[2] != digest_of(content):
        return None
    try:
        return AcceptedJob.FromString(content)
    except DecodeError:
        return None
