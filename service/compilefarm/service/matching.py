"""Matches jobs with workers, and explains why none matches."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compilefarm.core.environments import describe, differences
from compilefarm.core.errors import NoMatchingWorker
from compilefarm.core.pool import WorkerView
from compilefarm.service.declared_environments import AbsentEnvironment
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_FAILED, WORKER_STATE_IDLE, WORKER_STATE_STARTING, WorkerState
from compilefarm.v1.environment_pb2 import Environment

# More than jobs that may wait (config.py: max_queued_jobs).
_MOST_MATCHES = 4096
# Workers that a message names.
_MOST_NAMED = 3


class Requirement:
    """An environment that jobs ask for, compared by the digest of its content so that answers about it can be kept."""

    __slots__ = ("content", "environment")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        # Answers are kept of more of them than memory has room for: one may have 128 KiB.
        self.content = hashlib.sha256(environment.SerializeToString(deterministic=True)).digest()


class Roster:
    """The workers at one moment, and the jobs that they can run.

    A worker that is on its way is good for those that its environment, as far as it is known, allows. One that has
    failed is good for none, unless it may come back and no other can do the job; so is one of an environment that is
    declared and has no worker.

    Attributes:
        workers: all of them, in the pool's order.
        idle: names of those that are idle, as far as the pool knows.
        kept_for: by the names of workers that go on with a job from before the gateway started, the key of that.

    Args:
        workers: all of them.
        expected: names of those that have failed and may come back.
        absent: declared environments that have no worker.
        before: an earlier roster; what it has found out holds as long as nothing changes that decides it.
    """

    def __init__(
        self,
        workers: Sequence[WorkerView],
        *,
        expected: Collection[str] = (),
        absent: Sequence[AbsentEnvironment] = (),
        before: Roster | None = None,
    ) -> None:
        self.workers = [*workers, *(each.view() for each in absent)]
        self.kept_for = {worker.name: worker.kept_for for worker in workers if worker.kept_for}
        self.idle = frozenset(worker.name for worker in workers if worker.state == WORKER_STATE_IDLE)
        self._has_failed = any(worker.state == WORKER_STATE_FAILED for worker in workers)
        self._present = workers
        self._expected = expected
        self._absent = absent
        # By the content of requirements, those that were asked for last at the end.
        self._matches: OrderedDict[bytes, _Match] = (
            OrderedDict() if before is None or self._differs(before) else before._matches
        )

    def is_of(self, workers: Sequence[WorkerView], *, absent: Sequence[AbsentEnvironment]) -> bool:
        """Returns whether it says of some workers, and environments without any, what another roster would say. How
        long failed workers are waited for is up to others.
        """
        return not self._has_failed and self._absent == absent and self._present == workers

    def fitting(self, requirement: Requirement) -> Sequence[str]:
        """Names of the workers that can do such a job now, later or perhaps, in the pool's order."""
        return self._match(requirement).fitting

    def names(self, requirement: Requirement) -> frozenset[str]:
        """The same without order."""
        return self._match(requirement).names

    def require(self, requirement: Requirement) -> None:
        """Passes if some worker can do such a job, however busy it is.

        Raises:
            NoMatchingWorker: none can. The message names, for each environment there is, what differs.
        """
        if not self.fitting(requirement):
            raise NoMatchingWorker(_explain(self.workers, wanted=requirement.environment))

    def awaited(self, requirement: Requirement) -> Sequence[AbsentEnvironment]:
        """The environments without a worker that could do such a job if they had one, where no worker can."""
        return self._match(requirement).awaited

    def awaited_by(self, requirement: Requirement) -> str:
        """What such a job waits for, for people, where that is no worker that is there; empty otherwise."""
        return " or ".join(self._awaited(requirement))

    def environment_names(self, requirement: Requirement) -> Sequence[str]:
        """Names of the environments whose workers can do such a job, each once."""
        return self._match(requirement).environment_names

    def _awaited(self, requirement: Requirement) -> list[str]:
        match = self._match(requirement)
        if match.awaited:
            return [each.awaited for each in match.awaited]
        waited_for = []
        for worker in self._present:
            if worker.state != WORKER_STATE_FAILED and worker.name in match.names:
                if worker.problem is None:
                    return []
                waited_for.append(f"worker {worker.name}, which {worker.problem}")
        return waited_for[:_MOST_NAMED]

    def _match(self, requirement: Requirement) -> _Match:
        if requirement.content not in self._matches:
            # Environments come from strangers, so there may be any number of them. Those of jobs that wait are looked
            # at with each change, and stay.
            if len(self._matches) >= _MOST_MATCHES:
                self._matches.popitem(last=False)
            self._matches[requirement.content] = self._find_match(requirement.environment)
        self._matches.move_to_end(requirement.content)
        return self._matches[requirement.content]

    def _find_match(self, wanted: Environment) -> _Match:
        fitting = _those_that_fit(self._present, wanted=wanted)
        whole = [worker.name for worker in fitting if worker.state != WORKER_STATE_FAILED]
        coming_back = [worker.name for worker in fitting if worker.name in self._expected]
        awaited = [] if whole else [each for each in self._absent if each.may_fit(wanted)]
        names = whole or [*coming_back, *(each.name for each in awaited)]
        known = frozenset(names)
        environment_names = dict.fromkeys(each.environment_name for each in self.workers if each.name in known)
        return _Match(fitting=names, names=known, awaited=awaited, environment_names=list(environment_names))

    def _differs(self, other: Roster) -> bool:
        """Returns whether other workers fit than in another roster."""
        if self._expected != other._expected or self._absent != other._absent:
            return True
        if len(self._present) != len(other._present):
            return True
        # Mostly they are the very same objects, which lists compare fastest.
        return self._present != other._present and not all(map(_are_alike, self._present, other._present))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """What a roster says of a requirement."""

    fitting: Sequence[str]
    names: frozenset[str]
    awaited: Sequence[AbsentEnvironment]
    environment_names: Sequence[str]


def _are_alike(one: WorkerView, other: WorkerView) -> bool:
    return one is other or (
        (one.name, one.state, one.environment_name) == (other.name, other.state, other.environment_name)
        and (one.environment is other.environment or one.environment == other.environment)
    )


def _those_that_fit(workers: Sequence[WorkerView], *, wanted: Environment) -> list[WorkerView]:
    # Of a thousand workers most are alike, and to compare two environments takes longer than to write one down.
    known: dict[tuple[WorkerState.ValueType, bytes], bool] = {}
    fitting = []
    for worker in workers:
        content = b"" if worker.environment is None else worker.environment.SerializeToString(deterministic=True)
        if (worker.state, content) not in known:
            known[worker.state, content] = _may_fit(worker, wanted=wanted)
        if known[worker.state, content]:
            fitting.append(worker)
    return fitting


def get_worker(workers: Sequence[WorkerView], *, environment_name: str) -> WorkerView:
    """Returns a worker of a named environment.

    Raises:
        NoMatchingWorker: there is none of that name, or none that has started, or they differ.
    """
    named = [worker for worker in workers if worker.environment_name == environment_name]
    if not named:
        known = ", ".join(dict.fromkeys(worker.environment_name for worker in workers)) or "none"
        raise NoMatchingWorker(f"the farm has no environment {environment_name[:80]!r}; known are {known}")
    started = [worker for worker in named if worker.environment is not None and worker.vocabulary is not None]
    if not started and named[0].name == f"({environment_name})":
        raise NoMatchingWorker(
            f"the environment {environment_name} is declared, not seen yet: what it looks like is known when it "
            "has had its first worker; ask for a compile of a graph of that environment"
        )
    if not started:
        why = named[0].problem or "it starts; ask again in a while"
        raise NoMatchingWorker(f"no worker of the environment {environment_name} has started: {why}")
    if any(worker.environment != started[0].environment for worker in started):
        raise NoMatchingWorker(
            f"the workers of the environment {environment_name} differ from each other, as two models of GPU do: start"
            " one farm for each"
        )
    return started[0]


def _may_fit(worker: WorkerView, *, wanted: Environment) -> bool:
    if worker.environment is None:
        return worker.state == WORKER_STATE_STARTING
    return not differences(wanted=wanted, offered=worker.environment)


def _explain(workers: Sequence[WorkerView], *, wanted: Environment) -> str:
    if not workers:
        return "the farm has no workers: start the service with at least one slot"
    failed = [worker for worker in workers if worker.state == WORKER_STATE_FAILED]
    if len(failed) == len(workers):
        return "\n".join(["no worker is ready:", *_lines_of_failed(failed), "see `compilefarm status` and the log"])
    ready = [worker for worker in workers if worker not in failed]
    return "\n".join(
        [
            f"no worker can compile for {describe(wanted)}:",
            *_lines_of_unfit(ready, wanted=wanted),
            *_lines_of_failed(failed),
            "add a worker of that environment, or give this machine the environment of a worker",
        ]
    )


def _lines_of_failed(workers: Sequence[WorkerView]) -> list[str]:
    names: dict[str, list[str]] = {}
    for worker in workers:
        names.setdefault(worker.problem or "it failed without saying why", []).append(worker.name)
    return [f"  {_list(them)} failed: {problem}" for problem, them in names.items()]


def _lines_of_unfit(workers: Sequence[WorkerView], *, wanted: Environment) -> list[str]:
    names: dict[str, list[str]] = {}
    for worker in workers:
        if worker.environment is not None:
            what = "; ".join(differences(wanted=wanted, offered=worker.environment))
            names.setdefault(what, []).append(worker.name)
    return [f"  {_list(them)}: {what}" for what, them in names.items()]


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
