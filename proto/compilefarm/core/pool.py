"""The interface between the gateway and its workers, such as processes on this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from compilefarm.core.contents import Content
from compilefarm.core.starts import StartPhase
from compilefarm.v1.admin_service_pb2 import WorkerState
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.v1.job_pb2 import CompileFailure, Job, Phase
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.v1.vocabulary_pb2 import Vocabulary

# What the environment is called in which the farm itself runs.
DEFAULT_ENVIRONMENT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """The state of a worker at this moment.

    Attributes:
        name: unique within the pool.
        state: whether it starts, is idle or has failed; never busy, since which job it has is known to who gave it one.
        environment: what it compiles for; None while it starts or when it could not start.
        problem: why it is in the state FAILED; None in the others.
        is_warm: whether a job would begin at once.
        environment_name: what the operator calls its environment; workers of one name are alike.
        vocabulary: what its torch understands; None before it has started once.
        sandbox: what shuts its processes off from files and network; empty if nothing does.
        no_sandbox: why nothing does.
        host: the machine that it is on; empty for one of the gateway's.
        node: what a cluster calls that machine; empty without a cluster.
        kept_for: key of a job that it has gone on with while no gateway was there; it gets no other before that one was
            asked for, or was not for a while. Empty: none.
        start: how long it took to be ready, by phase; empty while it starts.
    """

    name: str
    state: WorkerState.ValueType
    environment: Environment | None
    problem: str | None = None
    is_warm: bool = False
    environment_name: str = DEFAULT_ENVIRONMENT
    vocabulary: Vocabulary | None = None
    sandbox: str = ""
    no_sandbox: str = ""
    host: str = ""
    node: str = ""
    kept_for: str = ""
    start: tuple[StartPhase, ...] = ()

    @property
    def device(self) -> str:
        """What it compiles for, in short: the name of its GPU or the architecture of its processor; empty while that is
        not known.
        """
        if self.environment is None:
            return ""
        has_gpu = self.environment.HasField("cuda")
        return self.environment.cuda.name if has_gpu else self.environment.cpu.architecture

    @property
    def place(self) -> str:
        """Where it is, for people: "on host-3 (node 8f2a), environment default, NVIDIA H200"; what is not known is left
        out.
        """
        node = f" (node {self.node})" if self.node else ""
        words = [f"on {self.host}{node}" if self.host else "", f"environment {self.environment_name}", self.device]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredEnvironment:
    """An environment of which the farm may have workers, whether it has any at present or not.

    Attributes:
        name: what the operator calls it.
        device: what its workers compile for.
        python: their interpreter; empty: that of the image.
        image: container image in which they run; empty: none.
        resources: what each takes of a cluster beside its device, by the cluster's names.
        least_workers: so many are kept, however idle.
        most_workers: no more than these.
        idle_seconds: how long a worker that is not needed stays.
    """

    name: str
    device: Literal["cpu", "cuda"]
    python: str = ""
    image: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    least_workers: int = 0
    most_workers: int = 1
    idle_seconds: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A job for a worker.

    Attributes:
        key: the key, for logs.
        job: what to compile.
        blobs: content by digest of every tensor that the graph holds.
        verify: whether the artifact is checked, where workers check at all.
    """

    key: str
    job: Job
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A finished compile.

    Attributes:
        manifest: its description; the gateway fills in key, parts and creation time.
        blobs: content by digest of everything that the manifest names; the digests were computed by the supervisor.
    """

    manifest: Manifest
    blobs: Mapping[str, Content]


class Toolchains(Protocol):
    """What workers have found out by trying the C++ compiler of their image, kept for workers that come later."""

    async def find(self, machine: str) -> ToolchainRecord | None:
        """What is kept for a machine and image, by the name that a worker has for them; None if nothing is, or if it
        cannot be had: then the worker tries for itself.
        """

    async def keep(self, record: ToolchainRecord) -> None:
        """Keeps what a worker has found out, if it can be kept."""


class NoToolchains:
    """Nothing is known of any C++ compiler, and nothing is kept. Satisfies Toolchains."""

    async def find(self, machine: str) -> ToolchainRecord | None:
        """See Toolchains.find."""
        del machine
        return None

    async def keep(self, record: ToolchainRecord) -> None:
        """See Toolchains.keep."""
        del record


@runtime_checkable
class Scaling(Protocol):
    """A pool that has more or fewer workers as jobs need them."""

    def expect(self, waiting: Mapping[str, int]) -> None:
        """Told how many jobs wait, by the name of an environment that can do them; those that are not named have none.
        Called whenever that may have changed, and about once a second while jobs wait.
        """


class WorkerPool(Protocol):
    """Workers that compile."""

    async def start(self) -> None:
        """Starts the workers and returns when every one is ready or has failed.

        Raises:
            RuntimeError: no worker could be started; the message says why and what to do.
        """

    async def close(self) -> None:
        """Ends all jobs and all child processes. None is left when it returns."""

    def workers(self) -> Sequence[WorkerView]:
        """The workers, in a fixed order."""

    async def run(
        self, assignment: Assignment, *, worker: str, on_phase: Callable[[Phase.ValueType], None]
    ) -> Artifact | CompileFailure:
        """Has an idle worker compile a job, and verify the artifact. Cancelling the call ends the job and kills its
        process.

        Args:
            assignment: the job.
            worker: name of an idle worker.
            on_phase: called at every change of phase.

        Raises:
            InvalidRequest: the worker found the request to be malformed or forbidden.
            ProcessDied: the process that had the job died.
            WorkerLost: the worker went away otherwise, and took the job with it.
        """

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Artifact | CompileFailure:
        """Has an idle worker verify an artifact. Cancelling the call ends the verification.

        Args:
            assignment: the job that it was made for.
            artifact: it.
            worker: name of an idle worker.

        Returns:
            The artifact, whose manifest says what was found and how long it took; or why it must not be served.

        Raises:
            ProcessDied, WorkerLost: as for `run`.
        """
