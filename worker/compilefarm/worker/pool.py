"""Workers that are processes of this host."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compilefarm.core.pool import DEFAULT_ENVIRONMENT, Artifact, Assignment, Toolchains, WorkerView
from compilefarm.core.starts import StartClock, StartPhase, from_wire, start_words
from compilefarm.v1.child_pb2 import Toolchain
from compilefarm.v1.job_pb2 import CompileFailure
from compilefarm.worker.control_groups import ControlGroups, memory_limits
from compilefarm.worker.fork_server import ForkServer
from compilefarm.worker.gpu_lock import lock_file
from compilefarm.worker.process import ChildDied, ChildSettings
from compilefarm.worker.sandbox import Sandbox
from compilefarm.worker.scratch import remove_abandoned
from compilefarm.worker.supervisor import OnPhase, SlotSettings, Supervisor
from compilefarm.worker.toolchain import ToolchainCache, machine_of

log = logging.getLogger(__name__)

# Threads, too. A compile has as many processes as there are processors, and each perhaps as many threads.
_PROCESSES = max(4096, (os.cpu_count() or 1) ** 2)
# Of one process. The farm has more: of files that are on their way in sockets, the kernel counts those of a user, and
# sends no more of them than it may open (unix(7), ETOOMANYREFS).
_DESCRIPTORS = 4096
# Of a whole child, which the farm looks through each second.
_FILES = 32 * 1024


def child_command(python: str) -> tuple[str, ...]:
    """The program that children of an interpreter run."""
    return (python, "-m", "compilefarm.worker.child")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """A pool on this host.

    Attributes:
        environment_name: what the operator calls the environment of its workers.
        cuda_devices: the GPUs to compile on, as CUDA_VISIBLE_DEVICES names them; empty compiles for the CPU.
        slots: jobs at a time; on GPUs, per GPU, where they measure one after the other.
        shares: among how many jobs at a time the processors and the memory of this host are shared; None: those of this
            pool have them to themselves.
        cache_folder: where knowledge about this machine is kept between runs.
        compile_seconds: how long a compile may take before it is ended.
        verify: whether artifacts are checked in a clean process.
        memory_bytes: how much memory a task and all that it starts may take; None is an equal share of three quarters
            of this machine's for each slot.
        disk_bytes: how much its files may.
        control_group: folder of a group in which each child gets one of its own; None makes none.
        modules: Python modules that children import because they register operators.
        libraries: names of distributions that children import for jobs that call their operators.
        triton_kernels: whether children run the source of Triton kernels that requests hold.
        output_bytes: how much an artifact may have, with its sources, and any file that its compile writes.
        sandbox: what children are started in; None starts them as any other process.
        no_sandbox: why there is none; empty if there is one.
        command: the program that children run.
        prepared: what came before the start of the workers, and how long it took.
    """

    environment_name: str = DEFAULT_ENVIRONMENT
    cuda_devices: tuple[str, ...] = ()
    slots: int = 1
    shares: int | None = None
    cache_folder: Path
    compile_seconds: float = 3600.0
    verify: bool = True
    memory_bytes: int | None = None
    disk_bytes: int = 20 * 10**9
    control_group: Path | None = None
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    triton_kernels: bool = False
    output_bytes: int = 1 << 30
    sandbox: Sandbox | None = None
    no_sandbox: str = ""
    command: tuple[str, ...] = child_command(sys.executable)
    prepared: tuple[StartPhase, ...] = ()


class LocalPool:
    """A supervisor for each slot. Satisfies compilefarm.core.pool.WorkerPool.

    Args:
        settings: of the pool.
        toolchains: what workers elsewhere have found out about the C++ compiler; None: this machine is alone.
    """

    def __init__(self, settings: PoolSettings, *, toolchains: Toolchains | None = None) -> None:
        self._settings = settings
        self._toolchains = toolchains
        self._keeping: asyncio.Task[None] | None = None
        self._cache = ToolchainCache(settings.cache_folder)
        self._servers = _Servers(settings)
        self._supervisors = {slot.name: Supervisor(slot) for slot in _slots(settings, self._servers, self._cache)}

    async def start(self) -> None:
        """See WorkerPool.start."""
        clock = StartClock(phases=self._settings.prepared)
        groups = _groups(self._settings)
        if groups is not None:
            groups.check()
        first, *others = self._supervisors.values()
        self._cache.prepare()
        await asyncio.to_thread(remove_abandoned, Path(tempfile.gettempdir()))
        await first.start()
        try:
            clock.end_of(from_wire(first.ready.start if first.ready is not None else ()), rest="process")
            toolchain = await self._toolchain(first)
            clock.end("toolchain")
            for supervisor in self._supervisors.values():
                supervisor.toolchain = toolchain
        finally:
            # Those that fail go on trying, and show why.
            await asyncio.gather(*(supervisor.start() for supervisor in others))
            # After a trial of the compiler another child is started.
            await first.start()
        clock.end("process")
        for supervisor in self._supervisors.values():
            supervisor.start_phases = clock.phases
        log.info(
            "workers of the environment %s ready after %s", self._settings.environment_name, start_words(clock.phases)
        )

    async def close(self) -> None:
        """See WorkerPool.close."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors.values()))
        await self._servers.close()

    def workers(self) -> Sequence[WorkerView]:
        """See WorkerPool.workers."""
        return [supervisor.view() for supervisor in self._supervisors.values()]

    async def run(self, assignment: Assignment, *, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
        """See WorkerPool.run."""
        return await self._supervisors[worker].run(assignment, on_phase=on_phase)

    async def verify(self, assignment: Assignment, artifact: Artifact, *, worker: str) -> Artifact | CompileFailure:
        """See WorkerPool.verify."""
        return await self._supervisors[worker].verify(assignment, artifact)

    async def _toolchain(self, supervisor: Supervisor) -> Toolchain:
        ready = supervisor.ready
        if ready is None:
            name = self._settings.environment_name
            raise RuntimeError(f"no worker of the environment {name} could start: {supervisor.view().problem}")
        # In a thread: it starts the compiler.
        machine = await asyncio.to_thread(machine_of, ready)
        known = await asyncio.to_thread(self._cache.find, machine) or await self._found_elsewhere(machine)
        if known is not None:
            return known
        log.info("trying the C++ compiler: once per machine and image, about half a minute")
        try:
            found = await supervisor.probe(keep=partial(self._cache.keep, machine))
        except ChildDied as died:
            raise RuntimeError(f"the C++ compiler could not be tried: {died}") from died
        if self._toolchains is not None:
            self._keeping = asyncio.create_task(self._hand_on(machine, found, self._toolchains))
        return found

    async def _found_elsewhere(self, machine: str) -> Toolchain | None:
        record = None if self._toolchains is None else await self._toolchains.find(machine)
        if record is None:
            return None
        log.info("what the C++ compiler can do is known from another worker of this image")
        return await asyncio.to_thread(self._cache.take, record)

    async def _hand_on(self, machine: str, found: Toolchain, toolchains: Toolchains) -> None:
        """Hands on what was found out to workers that come later. Nobody waits for it."""
        record = await asyncio.to_thread(self._cache.record_of, machine, found)
        if record is not None:
            await toolchains.keep(record)


class _Servers:
    """The fork servers of all slots: one of children that compile, and one of those that verify."""

    def __init__(self, settings: PoolSettings) -> None:
        shares = _shares(settings)
        memory = _memory_bytes(settings)
        command = [
            *settings.command,
            f"--memory-limit={memory}",
            f"--file-limit={settings.output_bytes}",
            f"--descriptor-limit={_descriptors()}",
            # Elsewhere all processes of the user would count, also those of other jobs.
            *([f"--process-limit={_PROCESSES}"] if settings.sandbox is not None else []),
            # Each child sees one GPU, which is number 0 to it.
            *(["--cuda-device=0"] if settings.cuda_devices else []),
            *(f"--import={module}" for module in settings.modules),
            *(f"--library={library}" for library in settings.libraries),
            *(["--allow-triton-kernels"] if settings.triton_kernels else []),
        ]
        # One job of a GPU measures while others of it compile: each takes as many processors as one that is alone.
        at_a_time = max(1, shares // settings.slots) if settings.cuda_devices else shares
        # Inductor reads it when it is imported.
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // at_a_time))}
        if not settings.cuda_devices:
            # For the server, too: what it compiles once for practice looks for GPUs, and would start CUDA.
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.compiling = ForkServer(command, environment=environment)
        self.verifying = ForkServer([*command, "--verifier"], environment=environment)

    async def close(self) -> None:
        await asyncio.gather(self.compiling.close(), self.verifying.close())


def _slots(settings: PoolSettings, servers: _Servers, cache: ToolchainCache) -> list[SlotSettings]:
    devices: Sequence[str | None] = settings.cuda_devices or (None,)
    locks_folder = settings.cache_folder / "gpus"
    locks = {device: None if device is None else lock_file(locks_folder, device) for device in devices}
    readable = (locks_folder,) if any(locks.values()) else ()
    kind = "cuda" if settings.cuda_devices else "cpu"
    prefix = "" if settings.environment_name == DEFAULT_ENVIRONMENT else f"{settings.environment_name}-"
    return [
        SlotSettings(
            name=f"{prefix}{kind}-{number}",
            environment_name=settings.environment_name,
            compiler=_child(settings, servers.compiling, device, readable=(cache.headers_folder, *readable)),
            verifier=_child(settings, servers.verifying, device, readable=readable) if settings.verify else None,
            compile_seconds=settings.compile_seconds,
            overlaps=kind == "cuda",
            headers_folder=cache.headers_folder,
            gpu_lock=locks[device],
            no_sandbox=settings.no_sandbox,
        )
        # The first of them is free first: each GPU has a job before one has two.
        for number, device in enumerate(device for _ in range(settings.slots) for device in devices)
    ]


def _shares(settings: PoolSettings) -> int:
    return settings.shares or max(1, len(settings.cuda_devices)) * settings.slots


def _memory_bytes(settings: PoolSettings) -> int:
    """Returns the memory limit of a task. The gateway, the system, and children that wait take some, too."""
    return settings.memory_bytes or _memory_of_machine() * 3 // 4 // _shares(settings)


def _descriptors() -> int:
    own, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_DESCRIPTORS, own // 2)


def _groups(settings: PoolSettings) -> ControlGroups | None:
    if settings.control_group is None:
        return None
    return ControlGroups(folder=settings.control_group, memory_bytes=_memory_bytes(settings), most_tasks=_PROCESSES)


def _memory_of_machine() -> int:
    """Bytes; where a control group allows less, as in a container, so much."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *memory_limits())


def _child(
    settings: PoolSettings, server: ForkServer, device: str | None, *, readable: tuple[Path, ...] = ()
) -> ChildSettings:
    sandbox = settings.sandbox
    return ChildSettings(
        server=server,
        variables={} if device is None else {"CUDA_VISIBLE_DEVICES": device},
        output_bytes=settings.output_bytes,
        memory_bytes=_memory_bytes(settings),
        disk_bytes=settings.disk_bytes,
        most_tasks=_PROCESSES,
        most_files=_FILES,
        groups=_groups(settings),
        sandbox=sandbox and replace(sandbox, readable=(*sandbox.readable, *readable)),
    )
