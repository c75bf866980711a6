"""Reports of pods that compared a program of the farm with the uncompiled graph and found a difference.

The artifact is withdrawn, and the next one of its key is verified before it is served. Reports count only from
callers that may have graphs compiled, for their own namespace, at a limited rate, and once for each key. So a pod
that is wrong, or lies, costs a few compiles, and what was compiled and verified after its report is not withdrawn on
its report again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compilefarm.core.errors import InvalidRequest, StoreUnavailable
from compilefarm.core.keys import is_key
from compilefarm.service.callers import Caller
from compilefarm.service.clock import Clock
from compilefarm.service.rarely import Rarely
from compilefarm.service.reports import Reports
from compilefarm.service.roles import Role
from compilefarm.store.checks import KEPT_SECONDS
from compilefarm.v1.compile_service_pb2 import (
    SELF_CHECK_OUTCOME_DIFFERS,
    SELF_CHECK_OUTCOME_UNSPECIFIED,
    SelfCheckOutcome,
    SelfCheckReport,
)

log = logging.getLogger(__name__)

_MOST_REPORTS = 100
_LONGEST_DETAIL = 300
_HOUR_SECONDS = 3600.0
_WITHDRAWN_PER_HOUR = 10
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Withdrawal:
    """An artifact that was withdrawn, on whose account, and when by the clock."""

    namespace: str
    key: str
    account: str
    seconds: float


class Withdrawing(Protocol):
    """Withdraws artifacts; see Withdrawals for the method."""

    async def withdraw(self, key: str, *, namespace: str, reason: str) -> bool: ...


class SelfChecks:
    """Handles the self checks that pods report.

    Args:
        withdrawals: takes artifacts out of use.
        reports: counts what was found.
        clock: time.
    """

    def __init__(self, *, withdrawals: Withdrawing, reports: Reports, clock: Clock) -> None:
        self._withdrawals = withdrawals
        self._reports = reports
        self._clock = clock
        self._disbelieved = Rarely(clock.monotonic)
        # Those of the days for which the store keeps what was found, in their order.
        self._withdrawn: list[_Withdrawal] = []

    async def note(self, reports: Sequence[SelfCheckReport], *, caller: Caller) -> None:
        """Takes note of all, or of none.

        Raises:
            InvalidRequest: they are too many, or one is malformed.
        """
        if len(reports) > _MOST_REPORTS:
            raise InvalidRequest(f"{len(reports)} self checks in one report: at most {_MOST_REPORTS} are allowed")
        for report in reports:
            _check(report)
        for report in reports:
            self._reports.self_checks[_word(report.outcome)] += 1
            if report.outcome == SELF_CHECK_OUTCOME_DIFFERS:
                await self._withdraw(report, caller=caller)

    async def _withdraw(self, report: SelfCheckReport, *, caller: Caller) -> None:
        why = f"a pod of {caller.account or 'this farm'} found that it computes something else: {report.detail!r}"
        if not self._may_withdraw(report.key, caller=caller):
            if self._disbelieved.is_due(caller.account):
                log.error("job %s: %s; nothing is done about it, nor about further ones for now", report.key, why)
            return
        # It counts before anything is waited for, so that many at a time are no more than one after the other.
        withdrawal = self._count(report.key, caller=caller)
        try:
            if await self._withdrawals.withdraw(report.key, namespace=caller.namespace, reason=why):
                return
        except StoreUnavailable as error:
            log.error("job %s: %s; it could not be withdrawn: %s", report.key, why, error)
        self._withdrawn = [each for each in self._withdrawn if each is not withdrawal]

    def _count(self, key: str, *, caller: Caller) -> _Withdrawal:
        now = self._clock.monotonic()
        withdrawal = _Withdrawal(namespace=caller.namespace, key=key, account=caller.account, seconds=now)
        self._withdrawn = [*self._withdrawn, withdrawal][-_MOST_REMEMBERED:]
        return withdrawal

    def _may_withdraw(self, key: str, *, caller: Caller) -> bool:
        now = self._clock.monotonic()
        since = now - _HOUR_SECONDS
        self._withdrawn = [each for each in self._withdrawn if now - each.seconds < KEPT_SECONDS]
        lately = [each for each in self._withdrawn if each.seconds > since]
        of_key = [each for each in self._withdrawn if (each.namespace, each.key) == (caller.namespace, key)]
        return (
            caller.role >= Role.COMPILE
            and not any(each.seconds > since or each.account == caller.account for each in of_key)
            and sum(each.account == caller.account for each in lately) < _WITHDRAWN_PER_HOUR
        )


def _check(report: SelfCheckReport) -> None:
    if report.outcome not in SelfCheckOutcome.values() or report.outcome == SELF_CHECK_OUTCOME_UNSPECIFIED:
        raise InvalidRequest(f"outcome {report.outcome} of a self check is not known here: upgrade the farm first")
    if not is_key(report.key) or len(report.detail) > _LONGEST_DETAIL:
        raise InvalidRequest("a self check names no key, or says more than is allowed")


def _word(outcome: SelfCheckOutcome.ValueType) -> str:
    return SelfCheckOutcome.Name(outcome).removeprefix("SELF_CHECK_OUTCOME_").lower()
