"""A supervisor owns one slot. It is plain Python and never imports torch.

It keeps spare children warm, gives each one task, watches it, kills its process group, and never uses it again. One
compiles, with the compiler imported; another verifies the artifact, with no more imported than a pod has. Digests of
what a child returns are computed here: a child can only return bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compilefarm.core.contents import Content
from compilefarm.core.environments import narrowed
from compilefarm.core.errors import InvalidRequest, ProcessDied, WorkerLost
from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Artifact, Assignment, WorkerView
from compilefarm.core.starts import StartPhase
from compilefarm.v1.admin_service_pb2 import (
    WORKER_STATE_FAILED,
    WORKER_STATE_IDLE,
    WORKER_STATE_STARTING,
    WorkerState,
)
from compilefarm.v1.child_pb2 import (
    ChildBlob,
    ChildFailure,
    ChildReady,
    ChildTask,
    CompileTask,
    ProbeTask,
    Toolchain,
    VerifyTask,
)
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_CRASHED,
    FAILURE_KIND_OUT_OF_DISK,
    FAILURE_KIND_OUT_OF_MEMORY,
    FAILURE_KIND_OUTPUT_TOO_LARGE,
    FAILURE_KIND_TIMEOUT,
    PHASE_VERIFYING,
    CompileFailure,
    FailureKind,
    Phase,
)
from compilefarm.v1.manifest_pb2 import Manifest, Timing, Verification
from compilefarm.worker.answers import checked_failure, checked_result, checked_verification, complete, new_phase
from compilefarm.worker.process import (
    ChildDied,
    ChildNotStarted,
    ChildOutOfDisk,
    ChildOutOfMemory,
    ChildSaidTooMuch,
    ChildSettings,
)
from compilefarm.worker.spares import SpareChild
from compilefarm.worker.spooling import SpoolingAssembly

log = logging.getLogger(__name__)

OnPhase = Callable[[Phase.ValueType], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """Settings of one slot.

    Attributes:
        name: the name of the worker, unique in its pool.
        environment_name: what the operator calls its environment.
        compiler: how children that compile are started.
        verifier: how children that verify artifacts are started; None returns artifacts unverified.
        compile_seconds: how long a compile may take before it is ended.
        verify_seconds: how long a verification may take before it is ended.
        restart_seconds: how long to wait before a child that could not start is started again.
        overlaps: whether the next children start while a job is at work. On a CPU they would take cores from it, and
            threads that wait for each other after every kernel lose a turn each time: a verification of 0.9 s took 6.9
                s on
            two cores.
        headers_folder: where the headers of the toolchain lie.
        gpu_lock: the file whose lock is that of its GPU; None if the slot has no GPU, or there is no such file.
        no_sandbox: why children are in no sandbox; empty if they are in one.
    """

    name: str
    environment_name: str = DEFAULT_ENVIRONMENT
    compiler: ChildSettings
    verifier: ChildSettings | None
    compile_seconds: float = 3600.0
    verify_seconds: float = 600.0
    restart_seconds: float = 10.0
    overlaps: bool = False
    headers_folder: Path = Path()
    gpu_lock: Path | None = None
    no_sandbox: str = ""


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
        # How long it took to be ready.
        self.start_phases: tuple[StartPhase, ...] = ()
        self._has_job = False
        self._compiler = self._spare(settings.compiler)
        self._verifier = self._spare(settings.verifier) if settings.verifier is not None else None
        self._spares = [spare for spare in (self._compiler, self._verifier) if spare is not None]

    def view(self) -> WorkerView:
        """Returns the state of the worker."""
        ready = self.ready
        return WorkerView(
            name=self._settings.name,
            state=self._state(),
            environment=ready and ready.environment,
            environment_name=self._settings.environment_name,
            vocabulary=ready and ready.vocabulary,
            problem=self._problem(),
            is_warm=all(spare.is_ready for spare in self._spares),
            sandbox=sandbox.version if (sandbox := self._settings.compiler.sandbox) else "",
            no_sandbox=self._settings.no_sandbox,
            start=self.start_phases,
        )

    @property
    def ready(self) -> ChildReady | None:
        """How the first child described itself and this machine; None before that."""
        return self._compiler.ready

    async def start(self) -> None:
        """Starts the first child and waits until it is ready or has failed; the latter shows in `view`."""
        self._warm_up()
        await self._compiler.attempted()

    async def close(self) -> None:
        """Ends every child. None is left when it returns."""
        for spare in self._spares:
            await spare.close()

    async def probe(self, *, keep: Callable[[Toolchain, Path], Toolchain]) -> Toolchain:
        """Finds out what the C++ compiler of this machine can do, which takes half a minute.

        Args:
            keep: called in a thread with what was found out, and with the folder that holds what was built, as long as
                that is there.

        Returns:
            What `keep` returns.

        Raises:
            ChildDied: the child could not start, or ended without an answer.
        """
        try:
            async with self._compiler.taken() as child:
                async for message in child.messages(ChildTask(probe=ProbeTask())):
                    if message.WhichOneof("message") == "toolchain":
                        return await asyncio.to_thread(keep, message.toolchain, child.folder)
                    raise ChildDied(f"the compiler could not be tried: {message.failed.failure.message}")
        finally:
            self._warm_up()
        raise AssertionError("messages() ends only by raising")

    async def run(self, assignment: Assignment, *, on_phase: OnPhase) -> Artifact | CompileFailure:
        """Compiles and verifies a job.

        Raises:
            InvalidRequest: the job is malformed or forbidden.
            ProcessDied: the child ended without an answer.
            WorkerLost: no child could be started.
        """
        return await self._named(assignment, self._run(assignment, on_phase))

    async def verify(self, assignment: Assignment, artifact: Artifact) -> Artifact | CompileFailure:
        """Verifies an artifact that was made without a verification.

        Raises:
            As `run`.
        """
        assert self._verifier is not None, f"worker {self._settings.name} does not verify"
        return await self._named(assignment, self._verify(assignment, artifact, self._verifier, lambda _: None))

    async def _named(
        self, assignment: Assignment, work: Coroutine[Any, Any, Artifact | CompileFailure]
    ) -> Artifact | CompileFailure:
        """Runs the work of a job, and turns what happened to the child into a failure or an error."""
        assert not self._has_job, f"worker {self._settings.name} has a job already"
        self._has_job = True
        try:
            return await work
        except _TaskFailed as failed:
            return self._result_of(failed)
        except ChildOutOfMemory as died:
            return _failure(FAILURE_KIND_OUT_OF_MEMORY, f"the compile ran out of memory: {died}")
        except ChildOutOfDisk as died:
            return _failure(FAILURE_KIND_OUT_OF_DISK, f"the compile ran out of disk: {died} (serve --disk-limit)")
        except ChildSaidTooMuch as died:
            return _failure(FAILURE_KIND_OUTPUT_TOO_LARGE, f"the artifact is not taken: {died}")
        except ChildDied as died:
            log.warning("worker %s lost the child of job %s: %s", self._settings.name, assignment.key, died)
            # A child that could not start knew nothing of the job.
            lost = WorkerLost if isinstance(died, ChildNotStarted) else ProcessDied
            raise lost(f"worker {self._settings.name} lost its process: {died}") from died
        finally:
            self._has_job = False
            # For the next job, and not while this one needs the processor.
            self._warm_up()

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
        if self._verifier is None or not assignment.verify:
            return artifact
        return await self._verify(assignment, artifact, self._verifier, on_phase)

    async def _compile(self, assignment: Assignment, on_phase: OnPhase) -> Artifact:
        task = CompileTask(
            job=assignment.job,
            toolchain=self.toolchain,
            headers_folder=str(self._settings.headers_folder),
            gpu_lock=str(self._settings.gpu_lock or ""),
        )
        blobs: dict[str, Content] = {}
        assembly = SpoolingAssembly()
        entered: set[Phase.ValueType] = set()
        async with self._compiler.taken() as child:
            ready = self._compiler.ready
            assert ready is not None, "a child that is ready has said what it is"
            async for message in child.messages(ChildTask(compile=task), blobs=assignment.blobs):
                match message.WhichOneof("message"):
                    case "progress":
                        on_phase(new_phase(message.progress, entered=entered))
                    case "blob":
                        if (blob := await _put_together(message.blob, assembly)) is not None:
                            digest, content = blob
                            blobs[digest] = content
                    case "compiled":
                        result = checked_result(message.compiled, job=assignment.job)
                        manifest = Manifest(
                            environment=narrowed(ready.environment, wanted=assignment.job.environment),
                            program=result.program,
                            libraries=result.libraries,
                            guards=result.guards,
                            timings=result.timings,
                            worker=self._settings.name,
                            sources=result.sources if result.HasField("sources") else None,
                        )
                        return complete(manifest, blobs)
                    case "failed":
                        raise _TaskFailed(checked_failure(message.failed), log_tail=child.log_tail)
                    case other:
                        raise ChildDied(f"it said {other} within a compile")
        raise AssertionError("messages() ends only by raising")

    async def _verify(
        self, assignment: Assignment, artifact: Artifact, verifier: SpareChild, on_phase: OnPhase
    ) -> Artifact | CompileFailure:
        on_phase(PHASE_VERIFYING)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._settings.verify_seconds):
                verification = await self._verification_of(assignment, artifact, verifier)
        except TimeoutError:
            return CompileFailure(
                kind=FAILURE_KIND_TIMEOUT,
                message=f"the verification of the artifact took longer than {self._settings.verify_seconds:.0f} s; "
                "the artifact was made, and nothing is known to be wrong with it",
            )
        except (ChildNotStarted, ChildOutOfMemory, ChildOutOfDisk):
            raise
        except ChildDied as died:
            # The clean process runs the artifact as a pod would: this artifact would take the pod with it.
            return _failure(FAILURE_KIND_CRASHED, f"the artifact ended the process that ran it: {died}")
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        manifest.verification.CopyFrom(verification)
        manifest.timings.append(Timing(phase=PHASE_VERIFYING, seconds=loop.time() - started))
        return Artifact(manifest=manifest, blobs=artifact.blobs)

    async def _verification_of(self, assignment: Assignment, artifact: Artifact, verifier: SpareChild) -> Verification:
        blobs = {**assignment.blobs, **artifact.blobs}
        manifest = Manifest()
        manifest.CopyFrom(artifact.manifest)
        task = VerifyTask(
            job=assignment.job,
            manifest=manifest,
            gpu_lock=str(self._settings.gpu_lock or ""),
        )
        async with verifier.taken() as child:
            async for message in child.messages(ChildTask(verify=task), blobs=blobs):
                match message.WhichOneof("message"):
                    case "verified":
                        return checked_verification(message.verified)
                    case "failed":
                        raise _TaskFailed(checked_failure(message.failed), log_tail=child.log_tail)
                    case other:
                        raise ChildDied(f"it said {other} within a verification")
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
        # While it has a job, the next child may be in trouble, and come back.
        if not self._has_job and self._problem() is not None:
            return WORKER_STATE_FAILED
        return WORKER_STATE_IDLE if self.ready is not None else WORKER_STATE_STARTING

    def _problem(self) -> str | None:
        return next((spare.problem for spare in self._spares if spare.problem is not None), None)

    def _warm_up(self) -> None:
        for spare in self._spares:
            spare.warm_up()

    def _spare(self, settings: ChildSettings) -> SpareChild:
        return SpareChild(
            settings,
            at_once=self._settings.overlaps,
            owner=self._settings.name,
            restart_seconds=self._settings.restart_seconds,
        )


async def _put_together(piece: ChildBlob, assembly: SpoolingAssembly) -> tuple[str, Content] | None:
    """Digest and content of a blob, if this is its last piece.

    Raises:
        ChildOutOfDisk: there is no room for it.
    """
    try:
        return await assembly.add(piece)
    except OSError as error:
        raise ChildOutOfDisk(f"its artifact cannot be kept in a temporary file: {error.strerror}") from error


def _failure(kind: FailureKind.ValueType, text: str) -> CompileFailure:
    """Returns a failure; `text` is its message, and below the first line the end of what the child printed."""
    headline, _, log_tail = text.partition("\n")
    return CompileFailure(kind=kind, message=headline, log_tail=log_tail)
