"""Lists, cancels and retries jobs, for operators."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from compilefarm.core.errors import InvalidRequest, JobCancelled, NoSuchJob
from compilefarm.service.active_job import ActiveJob
from compilefarm.service.active_jobs import ActiveJobs
from compilefarm.service.quarantine import Quarantine, Quarantined
from compilefarm.service.verifications import Verifications

log = logging.getLogger(__name__)

_SHORTEST_BEGINNING = 6
_MOST_LISTED = 20


class JobControl:
    """Lists jobs, cancels them, and releases keys from quarantine.

    Args:
        jobs: the compiles.
        verifications: those of artifacts that are served already.
        quarantine: keys that are not tried.
    """

    def __init__(self, *, jobs: ActiveJobs, verifications: Verifications, quarantine: Quarantine) -> None:
        self._jobs = jobs
        self._verifications = verifications
        self._quarantine = quarantine

    def compiles(self) -> list[ActiveJob]:
        """Returns the compiles that wait or run, in order of arrival."""
        return self._jobs.under_way()

    def verifications(self) -> list[ActiveJob]:
        """Returns the verifications of artifacts that are served already, in order of arrival."""
        return self._verifications.running()

    async def count_quarantined(self) -> int:
        """How many keys are not tried for a while.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._quarantine.count()

    async def quarantined(self) -> list[Quarantined]:
        """Keys that are not tried for a while, by any gateway on the store.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        return await self._quarantine.all()

    def cancel(self, text: str) -> str:
        """Ends a job, in every namespace, and returns its key; those who wait for it are told.

        Args:
            text: its key, or a beginning of it that fits only one.

        Raises:
            NoSuchJob: there is none.
            InvalidRequest: `text` is too short, or fits several.
        """
        key = _the_key(text, among=(job.key for job in self._jobs.under_way()), what="waits or is being compiled")
        log.info("job %s: cancelled by an operator", key)
        why = "an operator cancelled this job: compile locally, or ask for it again"
        self._jobs.end(key, why=JobCancelled(why))
        return key

    async def retry(self, text: str) -> str:
        """Releases a key from quarantine, so that the next request tries it, and returns it.

        Args:
            text: the key, or a beginning of it that fits only one.

        Raises:
            NoSuchJob: no such key is quarantined.
            InvalidRequest: `text` is too short, or fits several.
            StoreUnavailable: the store cannot be read.
        """
        key = _the_key(text, among=(each.key for each in await self._quarantine.all()), what="is quarantined")
        log.info("job %s: taken out of quarantine by an operator", key)
        await self._quarantine.release(key)
        return key


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
