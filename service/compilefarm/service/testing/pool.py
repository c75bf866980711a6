"""Workers that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from compilefarm.core.errors import InvalidRequest, ProcessDied, WorkerLost
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Artifact, Assignment, WorkerView
from compilefarm.service.testing.jobs import ENVIRONMENT
from compilefarm.store.testing import sample_artifact
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import CompileFailure, Phase
from compilefarm.v1.manifest_pb2 import Manifest, Timing
from compilefarm.v1.vocabulary_pb2 import Vocabulary


def artifact_of(assignment: Assignment) -> Artifact:
    """The artifact that scripted workers make: other bytes for every key."""
    return sample_artifact(assignment.key, program=f"program of {assignment.key}".encode())


OnPhase = Callable[[Phase.ValueType], None]
# What a scripted worker does with a job.
Script = Callable[[Assignment, str, OnPhase], Awaitable[Artifact | CompileFailure]]


async def compile_at_once(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
    """A script: succeeds without delay."""
    del worker
    on_phase(Phase.PHASE_COMPILING)
    return artifact_of(assignment)


# What a scripted worker says of an artifact.
VerifyScript = Callable[[Artifact], Awaitable[Artifact | CompileFailure]]


async def verify_at_once(artifact: Artifact) -> Artifact:
    """A script: finds the artifact good, in a quarter of a second."""
    manifest = Manifest()
    manifest.CopyFrom(artifact.manifest)
    manifest.verification.load_seconds = 0.125
    manifest.timings.append(Timing(phase=Phase.PHASE_VERIFYING, seconds=0.25))
    return Artifact(manifest=manifest, blobs=artifact.blobs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldCompile:
    """A compile that goes on until the test says how it ends.

    Attributes:
        assignment: the job.
        worker: the worker that has it.
        enter: call it with a phase to have the worker report that.
        ended: done when the compile has ended; cancelled if it was given up.
    """

    assignment: Assignment
    worker: str
    enter: OnPhase
    ended: asyncio.Future[Artifact | CompileFailure]

    def finish(self, result: Artifact | CompileFailure | None = None) -> None:
        """Ends it with a result; with an artifact unless another is given."""
        self.ended.set_result(artifact_of(self.assignment) if result is None else result)

    def lose(self) -> None:
        """Loses the worker."""
        self.ended.set_exception(WorkerLost(f"{self.worker} was killed"))

    def die(self, cause: str = "it was killed by SIGSEGV") -> None:
        """Ends the process of the job."""
        self.ended.set_exception(ProcessDied(f"worker {self.worker} lost its process: {cause}"))

    def refuse(self, message: str) -> None:
        """Refuses the request, as a worker does."""
        self.ended.set_exception(InvalidRequest(message))

    def crash(self, error: Exception) -> None:
        """Raises an error of the pool itself."""
        self.ended.set_exception(error)


class HeldCompiles:
    """A script: compiles wait for the test.

    Attributes:
        started: all compiles so far.
    """

    def __init__(self) -> None:
        self.started: list[HeldCompile] = []
        self._unseen: asyncio.Queue[HeldCompile] = asyncio.Queue()

    async def __call__(self, assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
        ended: asyncio.Future[Artifact | CompileFailure] = asyncio.get_running_loop().create_future()
        held = HeldCompile(assignment=assignment, worker=worker, enter=on_phase, ended=ended)
        self.started.append(held)
        self._unseen.put_nowait(held)
        return await ended

    async def next(self) -> HeldCompile:
        """The next compile that starts."""
        return await self._unseen.get()


class ScriptedPool:
    """Workers that follow a script. Satisfies compilefarm.core.pool.WorkerPool.

    Attributes:
        assignments: the jobs that workers were given, in order.
        checked: the keys of the artifacts that they were given to check, in order.
        closed: whether `close` was called.
    """

    def __init__(
        self,
        script: Script = compile_at_once,
        *,
        environments: Sequence[Environment] = (ENVIRONMENT,),
        names: Sequence[str] = (),
        vocabularies: Sequence[Vocabulary] = (),
        verify: VerifyScript = verify_at_once,
    ) -> None:
        """One worker for each environment: "worker-0", "worker-1", ...

        Args:
            script: what they do with a job.
            environments: what they compile for.
            names: what the operator calls these environments; without names they are all the default.
            vocabularies: what their torch understands; without vocabularies, nothing.
            verify: what they do with an artifact that is to be checked.
        """
        self.assignments: list[Assignment] = []
        self.checked: list[str] = []
        self.closed = False
        self._script = script
        self._verify = verify
        self._busy: set[str] = set()
        self._views = {
            f"worker-{number}": WorkerView(
                name=f"worker-{number}",
                state=WorkerState.WORKER_STATE_IDLE,
                environment=environment,
                environment_name=names[number] if names else DEFAULT_ENVIRONMENT,
                vocabulary=vocabularies[number] if vocabularies else Vocabulary(),
            )
            for number, environment in enumerate(environments)
        }

    async def start(self) -> None:
        """See WorkerPool.start."""

    async def close(self) -> None:
        """See WorkerPool.close."""
        self.closed = True

    def workers(self) -> Sequence[WorkerView]:
        """See WorkerPool.workers."""
        return list(self._views.values())

    def fail(self, name: str, *, problem: str) -> None:
        """Puts a worker into the state FAILED."""
        self._change(name, state=WorkerState.WORKER_STATE_FAILED, problem=problem)

    def restart(self, name: str) -> None:
        """Puts a worker into the state STARTING; what it can do is not known then."""
        self._views[name] = replace(
            self._views[name], state=WorkerState.WORKER_STATE_STARTING, environment=None, problem=None
        )

    def recover(
        self, name: str, *, environment: Environment = ENVIRONMENT, environment_name: str = DEFAULT_ENVIRONMENT
    ) -> None:
        """Puts a worker into the state IDLE, one that was not there before, too."""
        self._views[name] = WorkerView(
            name=name,
            state=WorkerState.WORKER_STATE_IDLE,
            environment=environment,
            environment_name=environment_name,
            vocabulary=Vocabulary(),
        )

    def keep(self, name: str, *, key: str) -> None:
        """Has a worker go on with a job from before the gateway started; with none if there is no key."""
        self._views[name] = replace(self._views[name], kept_for=key)

    def move(self, name: str, *, host: str, node: str) -> None:
        """Puts a worker on a machine of a cluster."""
        self._views[name] = replace(self._views[name], host=host, node=node)

    def remove(self, name: str) -> None:
        """Has a worker no more."""
        del self._views[name]

    async def run(self, assignment: Assignment, *, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
        """See WorkerPool.run."""
        with self._working(worker):
            self.assignments.append(assignment)
            return await self._script(assignment, worker, on_phase)

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Artifact | CompileFailure:
        """See WorkerPool.verify."""
        with self._working(worker):
            self.checked.append(assignment.key)
            return await self._verify(artifact)

    @contextmanager
    def _working(self, worker: str) -> Iterator[None]:
        assert self._views[worker].state == WorkerState.WORKER_STATE_IDLE, f"{worker} cannot be given a job"
        assert worker not in self._busy, f"{worker} has a job already"
        self._busy.add(worker)
        try:
            yield
        finally:
            self._busy.remove(worker)

    def _change(self, name: str, *, state: WorkerState.ValueType, problem: str | None = None) -> None:
        self._views[name] = replace(self._views[name], state=state, problem=problem)


class ScriptedScalingPool(ScriptedPool):
    """Workers that follow a script, and come and go. Satisfies compilefarm.core.pool.Scaling.

    Attributes:
        expected: what it was told last: how many jobs wait, by environment.
    """

    expected: Mapping[str, int] = {}

    def expect(self, waiting: Mapping[str, int]) -> None:
        """See Scaling.expect."""
        self.expected = dict(waiting)
