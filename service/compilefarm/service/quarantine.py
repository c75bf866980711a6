"""Keys whose compiles end the processes that do them, take longer than they may, or give what fails its check: not
tried for a while, so that one graph costs few workers, and a second pod hears at once what the first one waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from compilefarm.service.clock import Clock
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind

# One may have been the wrong process to be killed when memory ran out.
_TOO_MANY_DEATHS = 2
# Of all namespaces. Each may say 20 KB.
MOST_KEPT = 5000


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
    those who are trusted more.

    Args:
        clock: time.
        seconds: how long a death is remembered.
    """

    def __init__(self, *, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._time_to_live = timedelta(seconds=seconds)
        # By namespace and key.
        self._dead: dict[tuple[str, str], Quarantined] = {}

    def find(self, key: str, *, namespaces: Sequence[str], hints: Sequence[int]) -> Quarantined | None:
        """Returns why a key is not tried in one of some namespaces, for these values of its symbols; None if it is."""
        self._forget()
        candidates = (self._dead.get((namespace, key)) for namespace in namespaces)
        kept = (each for each in candidates if each is not None and _is_kept(each))
        return next((each for each in kept if each.hints in (None, tuple(hints))), None)

    def all(self) -> list[Quarantined]:
        """All that are not tried, in the order in which they came."""
        self._forget()
        return [each for each in self._dead.values() if _is_kept(each)]

    def note_death(
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
        """
        self._forget()
        before = self._dead.pop((namespace, key), None)
        self._make_room()
        deaths = before.deaths + 1 if before is not None else 1
        since = self._clock.now()
        until = since + self._time_to_live
        self._dead[namespace, key] = Quarantined(
            key=key,
            namespace=namespace,
            deaths=deaths,
            failure=_failure(key, kind=kind, cause=cause, deaths=deaths, until=until),
            since=since,
            until=until,
        )
        return self.find(key, namespaces=[namespace], hints=())

    def note_refusal(self, key: str, *, namespace: str, hints: Sequence[int], failure: CompileFailure) -> None:
        """Notes a failure that another compile of the key would end in, too, for the same values of its symbols.

        It is remembered for as long as this service lives at most: another release of the farm may do better.
        """
        self._forget()
        self._dead.pop((namespace, key), None)
        self._make_room()
        since = self._clock.now()
        until = since + self._time_to_live
        told = CompileFailure()
        told.CopyFrom(failure)
        told.message = f"{failure.message}. {_remembered(key, until=until)}"
        self._dead[namespace, key] = Quarantined(
            key=key,
            namespace=namespace,
            deaths=0,
            failure=told,
            since=since,
            until=until,
            hints=tuple(hints),
        )

    def note_survival(self, key: str, *, namespace: str) -> None:
        """Notes that a key was compiled: what died before did not die of it."""
        self._dead.pop((namespace, key), None)

    def release(self, key: str) -> None:
        """Releases a key in every namespace."""
        self._dead = {place: each for place, each in self._dead.items() if each.key != key}

    def _forget(self) -> None:
        now = self._clock.now()
        # They lie in the order in which they expire.
        while self._dead and (first := next(iter(self._dead.values()))).until <= now:
            del self._dead[first.namespace, first.key]

    def _make_room(self) -> None:
        while len(self._dead) >= MOST_KEPT:
            # The oldest of the namespace that has most.
            counts = Counter(namespace for namespace, _ in self._dead)
            largest = counts.most_common(1)[0][0]
            del self._dead[next(place for place in self._dead if place[0] == largest)]


def _is_kept(quarantined: Quarantined) -> bool:
    return quarantined.deaths == 0 or quarantined.deaths >= _TOO_MANY_DEATHS


def _remembered(key: str, *, until: datetime) -> str:
    return (
        f"It is quarantined until {until:%Y-%m-%d %H:%M} UTC: compile it locally; `compilefarm retry {key}` has it "
        "tried before"
    )


def _failure(key: str, *, kind: FailureKind.ValueType, cause: str, deaths: int, until: datetime) -> CompileFailure:
    what = (
        "compiles of this graph timed out or died"
        if kind == FailureKind.FAILURE_KIND_TIMEOUT
        else "processes died of this graph"
    )
    headline, _, log_tail = cause.partition("\n")
    return CompileFailure(
        kind=kind,
        message=(f"{deaths} {what}, the last one so: {headline}. {_remembered(key, until=until)}"),
        log_tail=log_tail,
    )
