"""Matches jobs with workers, and explains why none matches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from compilefarm.core.environments import describe, differences
from compilefarm.core.errors import NoMatchingWorker
from compilefarm.core.pool import WorkerView
from compilefarm.service.declared_environments import AbsentEnvironment
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment

# Workers that a message names.
_MOST_NAMED = 3


class Requirement:
    """An environment that jobs ask for, compared by content so that answers about it can be kept."""

    __slots__ = ("content", "environment")

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.content = environment.SerializeToString(deterministic=True)


class Roster:
    """The workers at one moment, and the jobs that they can run.

    A worker that is on its way is good for those that its environment, as far as it is known, allows. One that has
    failed is good for none, unless it may come back and no other can do the job; so is one of an environment that is
    declared and has no worker.

    Attributes:
        workers: all of them, in the pool's order.
        kept_for: by the names of workers that go on with a job from before the gateway started, the key of that.

    Args:
        workers: all of them.
        expected: names of those that have failed and may come back.
        absent: declared environments that have no worker.
    """

    def __init__(
        self,
        workers: Sequence[WorkerView],
        *,
        expected: Collection[str] = (),
        absent: Sequence[AbsentEnvironment] = (),
    ) -> None:
        self.workers = [*workers, *(each.view() for each in absent)]
        self.kept_for = {worker.name: worker.kept_for for worker in workers if worker.kept_for}
        self._present = workers
        self._expected = expected
        self._absent = absent
        self._fitting: dict[bytes, list[str]] = {}
        self._environment_names: dict[bytes, list[str]] = {}
        self._awaited_by: dict[bytes, str] = {}

    def fitting(self, requirement: Requirement) -> list[str]:
        """Names of the workers that can do such a job now, later or perhaps, in the pool's order."""
        if requirement.content not in self._fitting:
            fits = partial(_may_fit, wanted=requirement.environment)
            found = [worker.name for worker in filter(fits, self._whole())] or [
                *(worker.name for worker in filter(fits, self._coming_back())),
                *(each.name for each in self.awaited(requirement)),
            ]
            self._fitting[requirement.content] = found
        return self._fitting[requirement.content]

    def require(self, requirement: Requirement) -> None:
        """Passes if some worker can do such a job, however busy it is.

        Raises:
            NoMatchingWorker: none can. The message names, for each environment there is, what differs.
        """
        if not self.fitting(requirement):
            raise NoMatchingWorker(_explain(self.workers, wanted=requirement.environment))

    def awaited(self, requirement: Requirement) -> list[AbsentEnvironment]:
        """The environments without a worker that could do such a job if they had one, where no worker can."""
        fits = partial(_may_fit, wanted=requirement.environment)
        if any(map(fits, self._whole())):
            return []
        return [each for each in self._absent if each.may_fit(requirement.environment)]

    def awaited_by(self, requirement: Requirement) -> str:
        """What such a job waits for, for people, where that is no worker that is there; empty otherwise."""
        if requirement.content not in self._awaited_by:
            self._awaited_by[requirement.content] = " or ".join(self._awaited(requirement))
        return self._awaited_by[requirement.content]

    def environment_names(self, requirement: Requirement) -> list[str]:
        """Names of the environments whose workers can do such a job, each once."""
        if requirement.content not in self._environment_names:
            fitting = set(self.fitting(requirement))
            names = (worker.environment_name for worker in self.workers if worker.name in fitting)
            self._environment_names[requirement.content] = list(dict.fromkeys(names))
        return self._environment_names[requirement.content]

    def _awaited(self, requirement: Requirement) -> list[str]:
        if absent := self.awaited(requirement):
            return [each.awaited for each in absent]
        fitting = set(self.fitting(requirement))
        able = [worker for worker in self._whole() if worker.name in fitting]
        if any(worker.problem is None for worker in able):
            return []
        return [f"worker {worker.name}, which {worker.problem}" for worker in able[:_MOST_NAMED]]

    def _whole(self) -> Iterator[WorkerView]:
        return (worker for worker in self._present if worker.state != WorkerState.WORKER_STATE_FAILED)

    def _coming_back(self) -> Iterator[WorkerView]:
        return (worker for worker in self._present if worker.name in self._expected)


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
        return worker.state == WorkerState.WORKER_STATE_STARTING
    return not differences(wanted=wanted, offered=worker.environment)


def _explain(workers: Sequence[WorkerView], *, wanted: Environment) -> str:
    if not workers:
        return "the farm has no workers: start the service with at least one slot"
    failed = [worker for worker in workers if worker.state == WorkerState.WORKER_STATE_FAILED]
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
