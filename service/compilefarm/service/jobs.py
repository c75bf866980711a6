"""The jobs of this moment, and what an operator does to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from compilefarm.core.errors import InvalidRequest, JobCancelled, NoSuchJob
from compilefarm.service.checks import Checks, RunningCheck
from compilefarm.service.clock import Clock
from compilefarm.service.flights import Flight, Flights, Stage
from compilefarm.service.forecast import Outlook
from compilefarm.service.priorities import Priority
from compilefarm.service.quarantine import Quarantine, Quarantined
from compilefarm.service.queue import Queue

log = logging.getLogger(__name__)

_SHORTEST_BEGINNING = 6
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as it stands at this moment.

    Attributes:
        key: its key.
        stage: what is being done, and by whom.
        priority: how urgent it is.
        tenant: whose job it is.
        namespace: in which its result will lie.
        waiting_requests: how many wait for it.
        elapsed_seconds: since it came.
        outlook: what it can expect.
    """

    key: str
    stage: Stage
    priority: Priority
    tenant: str
    namespace: str
    waiting_requests: int
    elapsed_seconds: float
    outlook: Outlook


class Jobs:
    """Shows the jobs, and ends or releases single ones."""

    def __init__(self, *, flights: Flights, checks: Checks, queue: Queue, quarantine: Quarantine, clock: Clock) -> None:
        self._flights = flights
        self._checks = checks
        self._queue = queue
        self._quarantine = quarantine
        self._clock = clock

    def all(self) -> list[JobView]:
        """Jobs that wait or are being compiled, in the order in which they came."""
        return [self._view(flight) for flight in self._flights.working()]

    def checks(self) -> list[JobView]:
        """Checks of artifacts that are served already, which wait or are being done, in the order of their coming."""
        return list(map(self._check_view, self._checks.running()))

    def quarantined(self) -> list[Quarantined]:
        """Keys that are not tried for a while."""
        return self._quarantine.all()

    def cancel(self, text: str) -> str:
        """Ends a job, in every namespace, and returns its key; those who wait for it are told.

        Args:
            text: its key, or a beginning of it that fits only one.

        Raises:
            NoSuchJob: there is none.
            InvalidRequest: `text` is too short, or fits several.
        """
        key = _the_key(
            text, among=(flight.key for flight in self._flights.working()), what="waits or is being compiled"
        )
        log.info("job %s: cancelled by an operator", key)
        why = "an operator cancelled this job: compile locally, or ask for it again"
        self._flights.end(key, why=JobCancelled(why))
        return key

    def retry(self, text: str) -> str:
        """Has a key that is quarantined tried again by the next request, and returns it.

        Args:
            text: the key, or a beginning of it that fits only one.

        Raises:
            NoSuchJob: no such key is quarantined.
            InvalidRequest: `text` is too short, or fits several.
        """
        key = _the_key(text, among=(entry.key for entry in self._quarantine.all()), what="is quarantined")
        log.info("job %s: taken out of quarantine by an operator", key)
        self._quarantine.release(key)
        return key

    def _view(self, flight: Flight) -> JobView:
        demand = flight.claims.demand
        return JobView(
            key=flight.key,
            stage=flight.stages[-1],
            priority=demand.priority,
            tenant=demand.tenant,
            namespace=flight.namespace,
            waiting_requests=flight.claims.waiting,
            elapsed_seconds=self._clock.monotonic() - flight.started_seconds,
            outlook=self._queue.outlook(flight.ticket),
        )

    def _check_view(self, check: RunningCheck) -> JobView:
        return JobView(
            key=check.key,
            stage=check.stage,
            priority=Priority.PREWARM,
            tenant="",
            namespace=check.namespace,
            waiting_requests=0,
            elapsed_seconds=self._clock.monotonic() - check.started_seconds,
            outlook=self._queue.outlook(check.ticket),
        )


def _the_key(text: str, *, among: Iterable[str], what: str) -> str:
    if len(text) < _SHORTEST_BEGINNING:
        raise InvalidRequest(f"{text!r} is too short: give at least {_SHORTEST_BEGINNING} characters of the key")
    # A key may have a job in several namespaces.
    keys = sorted({key for key in among if key.startswith(text)})
    if not keys:
        raise NoSuchJob(f"no job whose key begins with {text[:100]} {what}; `compilefarm jobs` lists them")
    if len(keys) > 1:
        listed = "\n  ".join(keys[:_MOST_LISTED])
        raise InvalidRequest(f"several keys begin with {text}; give more of the one you mean:\n  {listed}")
    return keys[0]
