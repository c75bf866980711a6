"""The journal: prewarms that were accepted, in the store until they are done.

A client that waits for a job asks again after a restart, but nobody waits for a prewarm. An entry is an object in the
store, in the folder of the gateway that has it to do. Its name begins with the key and ends with the digest of its
content; it is there before the job is acknowledged, and goes when the job has a result. What is left of a gateway that
is gone is taken over by another one, or by the next.

Requests for the same key, namespaces and hints share an entry, which counts for the account that asked first. The
content of entries is in the store alone and is read when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import Busy, StoreUnavailable
from compilefarm.core.keys import Key
from compilefarm.core.moments import is_moment
from compilefarm.service.clock import Clock
from compilefarm.service.journal_entries import JournalEntry, Wanted, entry_name, session_of
from compilefarm.service.sessions import Peers, Session
from compilefarm.store.backend import Backend, StoredObject
from compilefarm.store.layout import JOURNAL
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.journal_pb2 import AcceptedJob

log = logging.getLogger(__name__)

# Nobody waits for a rollout any longer.
_KEPT = timedelta(days=7)
MOST_ENTRIES = 10_000
MOST_BYTES = 1024 * 1024 * 1024
# Of these, so much is for one account at most.
ACCOUNT_SHARE = 1 / 4
_RETRY_SECONDS = 60.0


class Journal:
    """The accepted prewarms that this gateway has to do.

    Args:
        backend: where they lie.
        session: of this gateway.
        peers: the gateways that live.
        clock: time.
        most_entries: that are kept of all accounts.
        most_bytes: that these may have.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        session: Session,
        peers: Peers,
        clock: Clock,
        most_entries: int = MOST_ENTRIES,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._backend = backend
        self._session = session
        self._peers = peers
        self._clock = clock
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        # By their names, in the order in which they were accepted.
        self._entries: dict[str, JournalEntry] = {}
        self._of_key: dict[str, list[JournalEntry]] = {}
        # Entries and bytes of each account, and of all under None.
        self._counts: Counter[str | None] = Counter()
        self._bytes: Counter[str | None] = Counter()
        # Names by what entries are shared by, how many requests share each, and what settles it, as far as it is known.
        self._names: dict[str, str] = {}
        self._shares: Counter[str] = Counter()
        self._wanted: dict[str, Wanted] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        # By path.
        self._deleting: dict[str, asyncio.Task[None]] = {}
        # What could not be deleted.
        self._left: set[str] = set()

    async def close(self) -> None:
        """Returns when what is done is gone. The rest is left to others."""
        await asyncio.gather(*self._deleting.values())

    def entries(self) -> list[JournalEntry]:
        """Returns the entries that are not done, in the order in which they were accepted."""
        return list(self._entries.values())

    def entries_of(self, key: str) -> list[JournalEntry]:
        """Returns the entries of a key."""
        return list(self._of_key.get(key, ()))

    def find_wanted(self, entry: JournalEntry) -> Wanted | None:
        """Returns what settles an entry; None if the entry was not read yet."""
        return self._wanted.get(entry.name)

    async def take_over(self) -> list[JournalEntry]:
        """Takes over what gateways have left that are gone, as far as there is room. Returns it, the oldest first.

        Raises:
            StoreUnavailable: the store cannot be read or written.
        """
        await self._delete_again()
        stored = [each async for each in self._backend.objects(JOURNAL)]
        # After the entries: a gateway begins its session before its first entry.
        foreign = [each for each in stored if session_of(each.path) != self._session.name]
        alive = (await self._peers.look(fresh=True)).alive if foreign else frozenset[str]()
        left = [each for each in foreign if session_of(each.path) not in alive]
        room = max(self._most_entries - self._counts[None], 0)
        taken = [await self._take(each) for each in sorted(left, key=lambda each: each.modified_seconds)[:room]]
        return [entry for entry in taken if entry is not None]

    async def inherit(self, name: str, content: bytes) -> JournalEntry:
        """Keeps what a release before this one had accepted.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        entry = JournalEntry(name=name, session=self._session.name, size_bytes=len(content))
        await self._create(entry, content)
        self._add(entry)
        return entry

    async def read(self, entry: JournalEntry) -> AcceptedJob | None:
        """Reads an entry; None if it is gone, damaged or too old: then it is forgotten.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        content = await self._backend.find(entry.path)
        if content is None or entry.name not in self._entries:
            self.forget(entry)
            return None
        accepted = await asyncio.to_thread(_parse, entry.name, content)
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
        if shared_by not in self._names:
            accepted = AcceptedJob(key=key.text, job=job, tenant=tenant, namespaces=namespaces, key_format=key.format)
            accepted.accepted.FromDatetime(self._clock.now())
            self._begin(accepted, shared_by=shared_by, account=account)
        entry = self._entries[self._names[shared_by]]
        self._shares[entry.name] += 1
        if entry.name in self._writing:
            await self._written(entry, writing=self._writing[entry.name])
        return entry

    def remove(self, entry: JournalEntry) -> None:
        """Forgets a job for one request that shares it. What a power failure brings back is found in the store when it
        is asked for again.
        """
        if entry.name not in self._entries:
            return
        self._shares[entry.name] -= 1
        if self._shares[entry.name] <= 0:
            self.forget(entry)

    def forget(self, entry: JournalEntry) -> None:
        """Forgets a job that is done, for all who share it."""
        if self._entries.pop(entry.name, None) is None:
            return
        self._of_key[entry.key].remove(entry)
        if not self._of_key[entry.key]:
            del self._of_key[entry.key]
        self._count(entry, sign=-1)
        if entry.shared_by:
            del self._names[entry.shared_by]
        self._shares.pop(entry.name, None)
        self._wanted.pop(entry.name, None)
        deleting = asyncio.create_task(self._delete(entry), name=f"journal entry {entry.name} that is done")
        self._deleting[entry.path] = deleting
        deleting.add_done_callback(lambda _: self._deleting.pop(entry.path))

    def _begin(self, accepted: AcceptedJob, *, shared_by: str, account: str) -> None:
        content = accepted.SerializeToString(deterministic=True)
        name = entry_name(accepted.key, account=account, content=content)
        entry = JournalEntry(name=name, session=self._session.name, size_bytes=len(content), shared_by=shared_by)
        self._require_room(entry, whose=account or "this caller")
        # It counts while it is being written, too.
        self._add(entry)
        self._wanted[name] = _wanted_of(accepted)
        writing = asyncio.create_task(self._write(entry, content), name=f"journal entry {name}")
        self._writing[name] = writing
        writing.add_done_callback(partial(self._end_writing, name))

    def _add(self, entry: JournalEntry) -> None:
        self._entries[entry.name] = entry
        self._of_key.setdefault(entry.key, []).append(entry)
        self._count(entry, sign=1)
        if entry.shared_by:
            self._names[entry.shared_by] = entry.name

    def _count(self, entry: JournalEntry, *, sign: int) -> None:
        for whose in (entry.account, None):
            self._counts[whose] += sign
            self._bytes[whose] += sign * entry.size_bytes
            if not self._counts[whose]:
                del self._counts[whose], self._bytes[whose]

    def _require_room(self, entry: JournalEntry, *, whose: str) -> None:
        for account, share, name in ((entry.account, ACCOUNT_SHARE, whose), (None, 1, "all callers together")):
            count, size_bytes = self._counts[account], self._bytes[account] + entry.size_bytes
            if count + 1 > share * self._most_entries or size_bytes > share * self._most_bytes:
                raise Busy(
                    f"{count} prewarm jobs of {name} are kept until they are done, and no more can be: ask again when "
                    "some are",
                    retry_after_seconds=_RETRY_SECONDS,
                )

    async def _written(self, entry: JournalEntry, *, writing: asyncio.Task[None]) -> None:
        try:
            # Whoever goes away takes nothing from those who share it.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Nothing was acknowledged, and nobody begins the job.
            writing.add_done_callback(lambda _: self.remove(entry))
            raise

    async def _write(self, entry: JournalEntry, content: bytes) -> None:
        try:
            await self._create(entry, content)
        except StoreUnavailable as error:
            self.forget(entry)
            raise StoreUnavailable(
                f"the job cannot be kept ({error}), so a restart could lose it: ask again when the store can be written"
            ) from error

    async def _create(self, entry: JournalEntry, content: bytes) -> None:
        if (deleting := self._deleting.get(entry.path)) is not None:
            await asyncio.wait([deleting])
        self._left.discard(entry.path)
        # Before it: others would take over what belongs to no session.
        await self._session.require()
        await self._backend.create(entry.path, content=content)

    def _end_writing(self, name: str, task: asyncio.Task[None]) -> None:
        del self._writing[name]
        if not task.cancelled():
            # Those who wait may all be gone; asyncio must not complain that nobody looked at the error.
            task.exception()

    async def _take(self, stored: StoredObject) -> JournalEntry | None:
        """Takes over an entry; None if another gateway was faster."""
        name = stored.path.rpartition("/")[2]
        entry = JournalEntry(name=name, session=self._session.name, size_bytes=stored.size_bytes)
        await self._session.require()
        if name in self._entries or not await self._backend.move(stored.path, target=entry.path):
            return None
        log.info("job %s: accepted by gateway %s, which is gone, and taken over", entry.key, session_of(stored.path))
        self._add(entry)
        return entry

    async def _delete(self, entry: JournalEntry) -> None:
        if (writing := self._writing.get(entry.name)) is not None:
            await asyncio.wait([writing])
        try:
            await self._backend.delete(entry.path)
        except StoreUnavailable as error:
            log.warning("%s is done, and looked for again after a restart: %s", entry.name, error)
            self._left.add(entry.path)

    async def _delete_again(self) -> None:
        for path in list(self._left):
            await self._backend.delete(path)
            self._left.discard(path)

    def _is_old(self, accepted: AcceptedJob) -> bool:
        now = self._clock.now()
        # What is dated so far ahead was accepted by a clock that has been set back since, and is as old as that.
        return abs(now - accepted.accepted.ToDatetime(now.tzinfo)) > _KEPT


def _shared_by(key: str, *, job: Job, namespaces: Sequence[str]) -> str:
    return f"{key} {','.join(namespaces)} {','.join(map(str, job.hints))}"


def _wanted_of(accepted: AcceptedJob) -> Wanted:
    return Wanted(namespaces=tuple(accepted.namespaces), hints=tuple(accepted.job.hints))


def _parse(name: str, content: bytes) -> AcceptedJob | None:
    if name.rpartition("-")[2] != digest_of(content):
        return None
    try:
        accepted = AcceptedJob.FromString(content)
    except DecodeError:
        return None
    # A time beyond the calendar is none of a job.
    if not is_moment(accepted.accepted):
        return None
    # Under another's key it would be done for ever: it goes when the job of its name has a result.
    return accepted if name.startswith(f"{accepted.key}-") else None
