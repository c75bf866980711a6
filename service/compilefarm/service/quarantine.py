"""Keys whose compiles end the processes that do them, take longer than they may, or give what fails its check: not
tried for a while, so that one graph costs few workers, and a second pod hears at once what the first one waited for.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.message import DecodeError

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.core.moments import is_moment
from compilefarm.service.clock import Clock
from compilefarm.store.backend import Backend
from compilefarm.store.blobs import few_at_a_time
from compilefarm.store.cache import Cache, cache_of_one
from compilefarm.store.layout import FAILURES, failure_folder, namespace_of, remembered_path
from compilefarm.store.steps import in_steps
from compilefarm.v1.gateways_pb2 import QuarantineRecord
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind

log = logging.getLogger(__name__)

# One may have been the wrong process to be killed when memory ran out.
_TOO_MANY_DEATHS = 2
# Of all namespaces. Each may say 20 KB.
MOST_KEPT = 5000
# More than any that was written here: whoever writes the storage may leave larger ones.
_LARGEST_BYTES = 128 * 1024
# Of one key, which are read however many there are of others.
_MOST_OF_KEY = 100
# Of one key in a namespace, each for other values of its symbols.
_MOST_REFUSALS = 16
# What lies there and is none of this release's is read once, as long as it is among so many.
_MOST_PASSED_OVER = 10_000
_DESCRIBED_AT_ONCE = 50
_COUNTED_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A key of which processes have died, or compiles have timed out.

    Attributes:
        key: the key.
        namespace: of the jobs that ended so.
        deaths: how many of both; 0 if one failure is enough, since another compile would end in the same.
        failure: what is said of the last one.
        since: when that was.
        until: when all of this is forgotten.
        hints: values of the job's symbols for which it failed; None: it holds for all.
    """

    key: str
    namespace: str
    deaths: int
    failure: CompileFailure
    since: datetime
    until: datetime
    hints: Sequence[int] | None = None

    @property
    def refused(self) -> bool:
        """Whether an artifact of the key failed its verification."""
        return self.failure.kind == FailureKind.FAILURE_KIND_VERIFICATION


class Quarantine:
    """Keeps keys of which two compiles have ended their process or timed out, in each namespace: nobody decides for
    those who are trusted more. What happened lies in the store, one object for each, where all gateways see it.

    Args:
        backend: where it lies.
        clock: time.
        seconds: how long a death is remembered.
        farm_version: this release; what others wrote is passed over.
    """

    def __init__(self, backend: Backend, *, clock: Clock, seconds: float, farm_version: str) -> None:
        self._backend = backend
        self._clock = clock
        self._time_to_live = timedelta(seconds=seconds)
        self._farm_version = farm_version
        # By path, as far as this gateway has written or read them; they do not change.
        self._known: dict[str, QuarantineRecord] = {}
        # Their paths by the folder of their key.
        self._of_keys: dict[str, dict[str, None]] = {}
        # Paths of what is nothing to this gateway.
        self._passed_over: dict[str, None] = {}
        # Those of them that could not be written: this gateway alone knows them.
        self._unwritten: set[str] = set()
        # Whoever may read may ask for it, and each time all are listed.
        self._counts: Cache[None, int] = cache_of_one(kept_seconds=_COUNTED_SECONDS, now=clock.monotonic)

    async def find(self, key: str, *, namespaces: Sequence[str], hints: Sequence[int]) -> Quarantined | None:
        """Returns why a key is not tried in one of some namespaces, for these values of its symbols; None if it is.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        untried = [paths for paths in await self._look(failure_folder(key)) if self._is_untried(paths)]
        kept = [each for each in map(self._describe, untried) if each.hints in (None, tuple(hints))]
        found = {each.namespace: each for each in kept}
        return next((found[namespace] for namespace in namespaces if namespace in found), None)

    async def all(self) -> list[Quarantined]:
        """All that are not tried, in the order in which they came. A key may be among them several times, each for
        other values of its symbols.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        found = []
        # Each is copied, and there may be thousands.
        async for paths in in_steps(await self._look(FAILURES), step=_DESCRIBED_AT_ONCE):
            known = [path for path in paths if path in self._known]
            if known and self._is_untried(known):
                found.append(self._describe(known))
        return sorted(found, key=lambda each: each.since)

    async def count(self) -> int:
        """How many are not tried. What another gateway has noted is seen _COUNTED_SECONDS later at the latest.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._counts.get(None, load=self._count) or 0

    async def _count(self) -> int:
        count = 0
        async for paths in in_steps(await self._look(FAILURES)):
            known = [path for path in paths if path in self._known]
            count += bool(known) and self._is_untried(known)
        return count

    async def note_death(
        self,
        key: str,
        *,
        namespace: str,
        cause: str,
        kind: FailureKind.ValueType = FailureKind.FAILURE_KIND_CRASHED,
    ) -> Quarantined | None:
        """Notes that a process died of a key, or was ended when its time was over; not None if it is not tried any more
        now.

        Args:
            key: the key.
            namespace: of the job.
            cause: what is known of the death: one line, and below it the end of what the process printed.
            kind: what it is called.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        headline, _, log_tail = cause.partition("\n")
        failure = CompileFailure(kind=kind, message=headline, log_tail=log_tail)
        await self._note(key, namespace=namespace, failure=failure, death=True)
        return await self.find(key, namespaces=[namespace], hints=())

    async def note_refusal(self, key: str, *, namespace: str, hints: Sequence[int], failure: CompileFailure) -> None:
        """Notes a failure that another compile of the key would end in, too, for the same values of its symbols.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        await self._note(key, namespace=namespace, failure=failure, death=False, hints=hints)

    async def note_survival(self, key: str, *, namespace: str) -> None:
        """Notes that a key was compiled: what died before did not die of it."""
        await self._drop([path for path in self._paths(failure_folder(key)) if namespace_of(path) == namespace])

    async def release(self, key: str) -> None:
        """Releases a key in every namespace, for all gateways.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        await self._look(failure_folder(key))
        await self._drop(self._paths(failure_folder(key)))

    async def _note(
        self, key: str, *, namespace: str, failure: CompileFailure, death: bool, hints: Sequence[int] = ()
    ) -> None:
        await self._look(failure_folder(key))
        await self._make_room()
        own = [path for path in self._paths(failure_folder(key)) if namespace_of(path) == namespace]
        replaced = self._replaced(own, hints=None if death else hints)
        now = self._clock.now()
        record = QuarantineRecord(
            key=key, namespace=namespace, failure=failure, death=death, hints=hints, farm_version=self._farm_version
        )
        record.since.FromDatetime(now)
        record.until.FromDatetime(now + self._time_to_live)
        await self._write(record)
        await self._drop(replaced)

    def _replaced(self, own: Sequence[str], *, hints: Sequence[int] | None) -> list[str]:
        """Those of the records of a key in a namespace that a further one is in place of: of a refusal for these
        values, or of a death.
        """
        refusals = [path for path in own if not self._known[path].death]
        if hints is None:
            return refusals
        others = [path for path in refusals if list(self._known[path].hints) != list(hints)]
        others.sort(key=lambda path: self._known[path].since.ToNanoseconds())
        # Pods that come in turn with two sizes would each have it compiled again.
        kept = others[-(_MOST_REFUSALS - 1) :]
        return [path for path in own if path not in kept]

    async def _write(self, record: QuarantineRecord) -> None:
        # Two deaths of one moment are two.
        content = record.SerializeToString(deterministic=True)
        digest = digest_of(content + secrets.token_bytes(16))
        path = remembered_path(record.key, digest=digest, namespace=record.namespace)
        self._remember(path, record)
        self._counts.drop(None)
        self._unwritten.add(path)
        try:
            await self._backend.create(path, content=content)
        except StoreUnavailable as error:
            log.warning("other gateways do not hear of what happened to %s: %s", record.key, error)
        else:
            self._unwritten.discard(path)

    async def _look(self, folder: str) -> list[Sequence[str]]:
        """Reads what lies below a folder, forgets what is too old, and returns the paths of the rest: the deaths of a
        key in a namespace together, and each refusal.
        """
        before = self._paths(folder)
        sizes = {stored.path: stored.size_bytes async for stored in self._backend.objects(folder)}
        listed = sizes.keys()
        unread = [path for path, size_bytes in sizes.items() if self._is_to_be_read(path, size_bytes=size_bytes)]
        # Whoever writes the storage may leave any number there.
        await few_at_a_time(self._read, unread[: max(MOST_KEPT - len(self._known), _MOST_OF_KEY)])
        # What has come since the listing is not in it.
        for path in {*before} - listed - self._unwritten:
            self._forget(path)
        groups: dict[tuple[str, str, tuple[int, ...] | None], list[str]] = {}
        async for path in in_steps(self._paths(folder)):
            if (record := self._known.get(path)) is not None:
                hints = None if record.death else tuple(record.hints)
                groups.setdefault((record.key, record.namespace, hints), []).append(path)
        now, kept, old = self._clock.now(), list[Sequence[str]](), list[str]()
        async for paths in in_steps(groups.values()):
            if known := [path for path in paths if path in self._known]:
                if self._is_over(self._until(known), now=now):
                    old += known
                else:
                    kept.append(known)
        await self._drop(old)
        return kept

    def _is_to_be_read(self, path: str, *, size_bytes: int) -> bool:
        return path not in self._known and path not in self._passed_over and size_bytes <= _LARGEST_BYTES

    async def _read(self, path: str) -> None:
        content = await self._backend.find(path)
        if content is None:
            return
        # A listing may have said less.
        if len(content) <= _LARGEST_BYTES:
            try:
                record = QuarantineRecord.FromString(content)
            except DecodeError as error:
                log.warning("%s cannot be read and is passed over: %s", path, error)
            else:
                is_dated = is_moment(record.since) and is_moment(record.until)
                if is_dated and record.farm_version == self._farm_version and record.HasField("failure"):
                    self._remember(path, record)
                    return
        self._passed_over[path] = None
        while len(self._passed_over) > _MOST_PASSED_OVER:
            del self._passed_over[next(iter(self._passed_over))]

    def _remember(self, path: str, record: QuarantineRecord) -> None:
        self._known[path] = record
        self._of_keys.setdefault(_folder_of(path), {})[path] = None

    def _forget(self, path: str) -> None:
        if self._known.pop(path, None) is not None:
            own = self._of_keys[_folder_of(path)]
            del own[path]
            if not own:
                del self._of_keys[_folder_of(path)]

    def _paths(self, folder: str) -> list[str]:
        return list(self._known if folder == FAILURES else self._of_keys.get(folder, ()))

    def _is_untried(self, paths: Sequence[str]) -> bool:
        """Returns whether what is known of a key is enough for that it is not tried."""
        records = [self._known[path] for path in paths]
        last = max(records, key=lambda each: each.since.ToNanoseconds())
        return not last.death or sum(record.death for record in records) >= _TOO_MANY_DEATHS

    def _is_over(self, until: datetime, *, now: datetime) -> bool:
        # Clocks of gateways may differ by as much. One that said more was set back since.
        return not now < until <= now + 2 * self._time_to_live

    def _until(self, paths: Sequence[str]) -> datetime:
        return max(self._known[path].until.ToDatetime(UTC) for path in paths)

    def _describe(self, paths: Sequence[str]) -> Quarantined:
        records = sorted((self._known[path] for path in paths), key=lambda each: each.since.ToNanoseconds())
        last = records[-1]
        deaths = sum(record.death for record in records) if last.death else 0
        until = last.until.ToDatetime(UTC)
        return Quarantined(
            key=last.key,
            namespace=last.namespace,
            deaths=deaths,
            failure=_told(last, deaths=deaths, until=until),
            since=last.since.ToDatetime(UTC),
            until=until,
            hints=None if last.death else tuple(last.hints),
        )

    async def _drop(self, paths: Sequence[str]) -> None:
        if paths:
            self._counts.drop(None)
        for path in paths:
            self._forget(path)
            self._unwritten.discard(path)
            try:
                await self._backend.delete(path)
            except StoreUnavailable as error:
                log.warning("%s is over, and other gateways do not hear of it: %s", path, error)

    async def _make_room(self) -> None:
        while len(self._known) >= MOST_KEPT:
            # The oldest of the namespace that has most.
            counts = Counter(record.namespace for record in self._known.values())
            largest = counts.most_common(1)[0][0]
            await self._drop([next(path for path, each in self._known.items() if each.namespace == largest)])


def _folder_of(path: str) -> str:
    """The folder of the key of a record at a path."""
    return "/".join(path.split("/", 3)[:3])


def _remembered(key: str, *, until: datetime) -> str:
    return (
        f"It is quarantined until {until:%Y-%m-%d %H:%M} UTC: compile it locally; `compilefarm retry {key}` has it "
        "tried before"
    )


def _told(last: QuarantineRecord, *, deaths: int, until: datetime) -> CompileFailure:
    """What is said of a key whose last failure is known."""
    told = CompileFailure()
    told.CopyFrom(last.failure)
    what = f"{last.failure.message}. "
    if last.death:
        many = (
            "compiles of this graph timed out or died"
            if last.failure.kind == FailureKind.FAILURE_KIND_TIMEOUT
            else "processes died of this graph"
        )
        what = f"{deaths} {many}, the last one so: {what}"
    told.message = what + _remembered(last.key, until=until)
    return told
