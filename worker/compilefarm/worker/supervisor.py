"""A supervisor owns one slot. It is plain Python and never imports torch.

It keeps a warm spare child, gives it one task, watches it, kills its process group, and never uses it again. Digests of
what a child returns are computed here: a child can only return bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import InvalidRequest, WorkerLost
from compilefarm.core.pool import Artifact, Assignment, WorkerView
from compilefarm.v1.admin_service_pb2 import (
    WORKER_STATE_BUSY,
    WORKER_STATE_FAILED,
    WORKER_STATE_IDLE,
    WORKER_STATE_STARTING,
    WorkerState,
)
from compilefarm.v1.child_pb2 import (
    ChildBlob,
    ChildFailure,
    ChildTask,
    CompileTask,
    ProbeTask,
    Toolchain,
    VerifyTask,
)
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_CRASHED,
    FAILURE_KIND_TIMEOUT,
    FAILURE_KIND_VERIFICATION,
    PHASE_VERIFYING,
    CompileFailure,
    Phase,
)
from compilefarm.v1.manifest_pb2 import Manifest, Timing, Verification
from compilefarm.worker.process import ChildDied, ChildNotStarted, ChildProcess, ChildSettings

log = logging.getLogger(__name__)

OnPhase = Callable[[Phase.ValueType], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """One slot.

    Attributes:
        name: of the worker, unique in its pool.
        child: how its children are started.
        compile_seconds: how long a compile may take before it is ended.
        verify_seconds: how long the check may take.
        verify: whether artifacts are checked in a clean process before they are returned.
        restart_seconds: how long to wait before a child that could not start is started again.
    """

    name: str
    child: ChildSettings
    compile_seconds: float = 3600.0
    verify_seconds: float = 600.0
    verify: bool = True
    restart_seconds: float = 10.0


class _TaskFailed(Exception):
    """The child answered with a failure."""

    def __init__(self, failure: ChildFailure, *, log_tail: str) -> None:
        super().__init__(failure.failure.message)
        self.failure = failure
        self.log_tail = log_tail


class Supervisor:
    """Runs jobs one at a time, each in a child of its own."""

    def __init__(self, settings: SlotSettings) -> None:
        self._settings = settings
        # What children are told of the C++ compiler; without it each tries it for itself.
        self.toolchain = Toolchain()
        self._environment: Environment | None = None
        self._problem: str | None = None
        self._job_key: str | None = None
        self._spare: asyncio.Task[ChildProcess] | None = None
        self._children: set[ChildProcess] = set()
        self._closing = False
        # The spare's first attempt to start has come to an end, good or bad.
        self._attempted = asyncio.Event()

    def view(self) -> WorkerView:
        """The worker as it stands."""
        return WorkerView(
            name=self._settings.name,
            state=self._state(),
            environment=self._environment,
            job_key=self._job_key,
            problem=self._problem,
        )

    async def start(self) -> None:
        """Starts the first spare child and waits until it is ready or has failed; the latter shows in `view`."""
        self._start_spare()
        await self._attempted.wait()

    async def close(self) -> None:
        """Ends every child. None is left when it returns."""
        self._closing = True
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.gather(self._spare, return_exceptions=True)
        for child in list(self._children):
            await self._end(child)

    async def probe(self) -> Toolchain:
        """Finds out what the C++ compiler of this machine can do; takes 20 to 30 seconds.

        Raises:
            ChildDied: the child could not start, or ended without an answer.
        """
        async with self._child() as child:
            async for message in child.messages(ChildTask(probe=ProbeTask())):
                if message.WhichOneof("message") == "toolchain":
                    return message.toolchain
                raise ChildDied(f"the compiler could not be tried: {message.failed.failure.message}")
        raise AssertionError("messages() ends only by raising")

    async def run(self, assignment: Assignment, *, on_phase: OnPhase) -> Artifact | CompileFailure:
        """Does a job.

        Raises:
            InvalidRequest: the job is malformed or forbidden.
            WorkerLost: the child ended without an answer.
        """
        assert self._job_key is None, f"worker {self._settings.name} has a job already"
        self._job_key = assignment.key
        try:
            return await self._run(assignment, on_phase)
        except _TaskFailed as failed:
            return self._result_of(failed)
        except ChildDied as died:
            log.warning("worker %s lost the child of job %s: %s", self._settings.name, assignment.key, died)
            raise WorkerLost(f"worker {self._settings.name} lost its process: {died}") from died
        finally:
            self._job_key = None

    async def _run(self, assignment: Assignment, on_phase: OnPhase) -> Artifact | CompileFailure:
        limit = self._settings.compile_seconds
        try:
            async with asyncio.timeout(limit):
                artifact = await self._compile(assignment, on_phase)
        except TimeoutError:
            return CompileFailure(
                kind=FAILURE_KIND_TIMEOUT,
                message=f"the compile took longer than {limit:.0f} s, the limit of this farm (serve --compile-timeout)",
            )
        return await self._verify(assignment, artifact, on_phase) if self._settings.verify else artifact

    async def _compile(self, assignment: Assignment, on_phase: OnPhase) -> Artifact:
        task = CompileTask(
            job=assignment.job,
            blobs=[ChildBlob(digest=digest, content=content) for digest, content in assignment.blobs.items()],
            toolchain=self.toolchain,
        )
        blobs: dict[str, bytes] = {}
        async with self._child() as child:
            async for message in child.messages(ChildTask(compile=task)):
                match message.WhichOneof("message"):
                    case "progress":
                        on_phase(message.progress.phase)
                    case "blob":
                        blobs[digest_of(message.blob.content)] = message.blob.content
                    case "compiled":
                        result = message.compiled
                        manifest = Manifest(
                            environment=self._environment,
                            program=result.program,
                            libraries=result.libraries,
                            guards=result.guards,
                            timings=result.timings,
                            worker=self._settings.name,
                        )
                        return _complete(manifest, blobs)
                    case "failed":
                        raise _TaskFailed(message.failed, log_tail=child.log_tail)
                    case other:
                        raise ChildDied(f"it said {other} within a compile")
        raise AssertionError("messages() ends only by raising")

    async def _verify(self, assignment: Assignment, artifact: Artifact, on_phase: OnPhase) -> Artifact | CompileFailure:
        on_phase(PHASE_VERIFYING)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._settings.verify_seconds):
                verification = await self._verification_of(assignment, artifact)
        except TimeoutError:
            return CompileFailure(
                kind=FAILURE_KIND_VERIFICATION,
                message=f"the check of the artifact took longer than {self._settings.verify_seconds:.0f} s",
            )
        except ChildNotStarted:
            raise
        except ChildDied as died:
            # The clean process runs the artifact as a pod would: this artifact would take the pod with it.
            return CompileFailure(
                kind=FAILURE_KIND_CRASHED, message=f"the artifact ended the process that ran it: {died}"
            )
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        manifest.verification.CopyFrom(verification)
        manifest.timings.append(Timing(phase=PHASE_VERIFYING, seconds=loop.time() - started))
        return Artifact(manifest=manifest, blobs=artifact.blobs)

    async def _verification_of(self, assignment: Assignment, artifact: Artifact) -> Verification:
        content = {**assignment.blobs, **artifact.blobs}
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        task = VerifyTask(
            job=assignment.job,
            manifest=manifest,
            blobs=[ChildBlob(digest=digest, content=each) for digest, each in content.items()],
        )
        async with self._child() as child:
            async for message in child.messages(ChildTask(verify=task)):
                match message.WhichOneof("message"):
                    case "verified":
                        return message.verified
                    case "failed":
                        raise _TaskFailed(message.failed, log_tail=child.log_tail)
                    case other:
                        raise ChildDied(f"it said {other} within a check")
        raise AssertionError("messages() ends only by raising")

    @staticmethod
    def _result_of(failed: _TaskFailed) -> CompileFailure:
        if failed.failure.invalid_request:
            raise InvalidRequest(failed.failure.failure.message)
        failure = CompileFailure()
        failure.CopyFrom(failed.failure.failure)
        failure.log_tail = failed.log_tail
        return failure

    def _state(self) -> WorkerState.ValueType:
        if self._job_key is not None:
            return WORKER_STATE_BUSY
        if self._problem is not None:
            return WORKER_STATE_FAILED
        return WORKER_STATE_IDLE if self._environment is not None else WORKER_STATE_STARTING

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[ChildProcess]:
        """A ready child, for one task. While it works, the next one warms up."""
        child = await self._take_spare()
        if not self._closing:
            self._start_spare()
        try:
            yield child
        finally:
            await self._end(child)

    async def _take_spare(self) -> ChildProcess:
        assert self._spare is not None, "start() comes first"
        await self._attempted.wait()
        if self._problem is not None:
            # It is tried again and again; this job may find another worker meanwhile.
            raise ChildNotStarted(self._problem)
        # Shielded: a job that is cancelled meanwhile must not take the next one's child with it.
        child = await asyncio.shield(self._spare)
        self._spare = None
        return child

    def _start_spare(self) -> None:
        self._attempted = asyncio.Event()
        self._spare = asyncio.create_task(self._ready_child(), name=f"spare child of {self._settings.name}")

    async def _ready_child(self) -> ChildProcess:
        while True:
            try:
                child = await self._start_child()
            except (ChildDied, OSError) as error:
                self._problem = f"its process cannot start: {error}"
                log.error("worker %s: %s", self._settings.name, self._problem)
                self._attempted.set()
                await asyncio.sleep(self._settings.restart_seconds)
            else:
                self._problem = None
                self._attempted.set()
                return child

    async def _start_child(self) -> ChildProcess:
        child = await ChildProcess.start(self._settings.child)
        self._children.add(child)
        try:
            ready = await child.ready()
        except BaseException:
            await self._end(child)
            raise
        self._environment = ready.environment
        return child

    async def _end(self, child: ChildProcess) -> None:
        await child.end()
        self._children.discard(child)


def _complete(manifest: Manifest, blobs: dict[str, bytes]) -> Artifact:
    wanted = {blob.digest for blob in blobs_of(manifest)}
    missing = sorted(wanted - blobs.keys())
    if missing:
        raise ChildDied(f"it named blobs that it did not send: {', '.join(missing)}")
    return Artifact(manifest=manifest, blobs={digest: blobs[digest] for digest in wanted})
