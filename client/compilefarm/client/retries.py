"""The retry policy of the client: which errors of a farm are worth another question, and after how many seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from compilefarm.client.clock import Budget
from compilefarm.core.errors import (
    Busy,
    Draining,
    FarmError,
    MissingBlobs,
    NotStored,
    Silent,
    StoreUnavailable,
    Unreachable,
    WorkerLost,
)

# The same question may have an answer a moment later: the key leads to the same job, to its result, or to a new job
# (a blob that is gone makes the job a miss).
_WORTH_ASKING_AGAIN = (Draining, WorkerLost, StoreUnavailable, Unreachable, MissingBlobs, NotStored)
# A farm that had accepted the graph and went away is probably being started anew, which takes seconds; the key leads to
# the job's result then, or to the job.
_GONE = (Draining, Unreachable)
# A farm that says "at once" again and again is not asked in a tight loop.
_LEAST_SECONDS_WHEN_BUSY = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a farm is asked again, and after how many seconds. A farm that is busy says itself when to come back.

    Attributes:
        delays_seconds: before each further question.
        rejoin_delays_seconds: the same after the farm had accepted the job and went away.
        renewed_after_seconds: a question that lasted longer than this makes all delays available again.
    """

    delays_seconds: tuple[float, ...]
    rejoin_delays_seconds: tuple[float, ...]
    renewed_after_seconds: float = inf


# A process waits that can compile the graph itself.
INTERACTIVE = RetryPolicy(delays_seconds=(1.0, 3.0), rejoin_delays_seconds=(1.0, 2.0, 4.0, 8.0, 15.0))
# Whoever prewarms is in no hurry, and asks for hours: the farm may be started anew more than once. One that is gone for
# longer is gone.
UNHURRIED = RetryPolicy(
    delays_seconds=(1.0, 2.0, 4.0, 8.0, 15.0, 30.0), rejoin_delays_seconds=(), renewed_after_seconds=30.0
)


class Retries:
    """The further questions about one job.

    Args:
        policy: how many there may be.
        budget: seconds that all questions may take together.
        wait: lets seconds pass before a further question; may raise FarmError to end the questions.
    """

    def __init__(self, policy: RetryPolicy, *, budget: Budget, wait: Callable[[float], object]) -> None:
        self._policy = policy
        self._budget = budget
        self._wait = wait
        self._delays = list(policy.delays_seconds)
        self._rejoin_delays = list(policy.rejoin_delays_seconds)

    def ask(self, question: Callable[[], T], *, is_accepted: Callable[[], bool] = lambda: False) -> T:
        """Asks until there is an answer.

        Args:
            question: asks once.
            is_accepted: whether the farm has accepted the job by now.

        Raises:
            FarmError: asking again cannot help, there is no time for it, or it was done often enough.
        """
        while True:
            spent = self._budget.spent()
            try:
                return question()
            except FarmError as error:
                lasted = self._budget.spent() - spent
                delay = self._find_delay(error, lasted=lasted, is_accepted=is_accepted())
                if delay is None:
                    raise
            self._wait(delay)

    def _find_delay(self, error: FarmError, *, lasted: float, is_accepted: bool) -> float | None:
        """Seconds to wait before the next question; None if there is to be none."""
        if isinstance(error, Busy):
            delay = max(error.retry_after_seconds, _LEAST_SECONDS_WHEN_BUSY)
            return delay if self._budget.allows(max(delay, error.estimated_wait_seconds)) else None
        # A farm that was silent would be silent again.
        if isinstance(error, Silent) or not isinstance(error, _WORTH_ASKING_AGAIN):
            return None
        if lasted > self._policy.renewed_after_seconds:
            self._delays = list(self._policy.delays_seconds)
        delays = self._rejoin_delays if is_accepted and isinstance(error, _GONE) else self._delays
        return delays.pop(0) if delays and self._budget.allows(delays[0]) else None
