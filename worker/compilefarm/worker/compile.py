"""Compiles a job in a child: decode, compile, run once, pack."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from compilefarm.builder.build_trials import replay_build_trials
from compilefarm.builder.generated_sources import watching_sources
from compilefarm.builder.headers import offer_headers
from compilefarm.builder.libraries import recording_libraries
from compilefarm.builder.packing import pack
from compilefarm.builder.programs import FinishedProgram, finish_program
from compilefarm.builder.triton_builds import built_libraries
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bounds import calls_views
from compilefarm.graph.compiling import compile_to_program
from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.options import config_patches
from compilefarm.loader.libraries import BuiltLibrary
from compilefarm.torch_internals.index_assertions import keeping_index_assertions
from compilefarm.torch_internals.kernel_measurements import measure_within
from compilefarm.v1.child_pb2 import CompileResult, CompileTask
from compilefarm.v1.graph_pb2 import Graph
from compilefarm.v1.job_pb2 import PHASE_COMPILING, PHASE_PACKING, PHASE_TUNING, Job, Phase
from compilefarm.v1.manifest_pb2 import (
    BUILDER_INDUCTOR,
    BUILDER_KERNEL,
    BUILDER_TRITON,
    Builder,
    SourceFile,
    Sources,
    Timing,
)
from compilefarm.worker.fillers import takes_zeros
from compilefarm.worker.gpu_lock import GpuLock
from compilefarm.worker.limits import memory_limit, time_limit
from compilefarm.worker.operator_guard import guarding_operators
from compilefarm.worker.process_groups import standing_in
from compilefarm.worker.regions import call_all_regions, call_inner_regions
from compilefarm.worker.source_check import check_source
from compilefarm.worker.synthetic import ATTEMPTS, are_refused, find_refusal, inputs_of, is_gpu_lost

log = logging.getLogger(__name__)

# Which numbers the synthetic inputs hold decides nothing that is kept; that they are the same every time keeps
# failures reproducible.
INPUT_SEED = 0
# Processor time. Decoding takes about a millisecond for each node, and 10 s for a recurrent network of 2,000 steps.
DECODE_SECONDS = 60.0
DECODE_SECONDS_OF_NODE = 0.002
# Tensors without elements take some kilobytes for each node. Functions of torch make lists as long as they are told.
DECODE_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A finished compile and the bytes it consists of.

    Attributes:
        result: the part of the manifest that a compile knows.
        blobs: stored bytes by digest.
    """

    result: CompileResult
    blobs: dict[str, bytes]

    def add(self, source_digest: str, name: str, content: bytes, *, builder: Builder.ValueType) -> None:
        """Adds a library."""
        blob, stored = pack(content)
        self.blobs[blob.digest] = stored
        self.result.libraries.add(source_digest=source_digest, name=name, blob=blob, builder=builder)


class Stopwatch:
    """Announces phases and keeps their durations."""

    def __init__(self, on_phase: Callable[[Phase.ValueType], None]) -> None:
        self._on_phase = on_phase
        self.timings: list[Timing] = []

    @contextmanager
    def phase(self, phase: Phase.ValueType) -> Iterator[None]:
        self._on_phase(phase)
        started = time.perf_counter()
        yield
        self.timings.append(Timing(phase=phase, seconds=time.perf_counter() - started))


def compile_task(task: CompileTask, *, admitted: Admitted, on_phase: Callable[[Phase.ValueType], None]) -> Compiled:
    """Compiles a job.

    Args:
        task: the job, the tensors that its graph holds, and what is known of the C++ compiler.
        admitted: what the request may hold.
        on_phase: called at every change of phase.

    Raises:
        InvalidRequest: the job is malformed or names what is not allowed.
        TimeLimitExceeded: it takes too long to find that out.
        GraphRejected: torch refuses the graph itself.
        Inexpressible: the compile assumed something of the symbols that cannot be said as a guard.
        UnexpectedSource: generated source holds what Inductor never writes.
        Exception: whatever torch raises while it compiles.
    """
    replay_build_trials({trial.program_digest: trial.works for trial in task.toolchain.trials})
    offer_headers(Path(task.headers_folder), task.toolchain.headers)
    if task.gpu_lock:
        measure_within(GpuLock(Path(task.gpu_lock)).held)
    stopwatch = Stopwatch(on_phase)
    blobs = {blob.digest: blob.content for blob in task.blobs}
    inductor_options, functorch_options = config_patches(task.job.options)
    with (
        standing_in(task.job.graph),
        apply_ambient(task.job.ambient),
        recording_libraries() as libraries,
        _watching_sources(task.job),
    ):
        with stopwatch.phase(PHASE_COMPILING):
            with (
                time_limit(decode_seconds(task.job.graph), doing="running the graph on tensors without elements"),
                memory_limit(DECODE_BYTES),
            ):
                decoded = decode(task.job, blobs=blobs, admitted=admitted)
            # What the graph itself assumes is known by now: a compile would be for nothing where that cannot be said.
            decoded.symbolic.guards()
            call_inner_regions(decoded.graph_module)
            with guarding_operators(calls_views=calls_views(task.job.graph)), keeping_index_assertions():
                program = compile_to_program(
                    decoded.graph_module,
                    decoded.inputs,
                    fake_mode=decoded.fake_mode,
                    inductor_options=inductor_options,
                    functorch_options=functorch_options,
                    static_inputs=decoded.static_inputs,
                    frozen_inputs=decoded.frozen_inputs,
                    tuned_ahead=takes_zeros(decoded.graph_module),
                )
        with stopwatch.phase(PHASE_TUNING):
            _tune(program, decoded, task.job)
        with stopwatch.phase(PHASE_PACKING):
            compiled = _packed(finish_program(program), list(libraries))
            # After the first run: backward graphs are lowered by now, too.
            compiled.result.guards.extend(decoded.symbolic.guards())
    compiled.result.timings.extend(stopwatch.timings)
    return compiled


def decode_seconds(graph: Graph) -> float:
    """How long a graph may take to be decoded."""
    return DECODE_SECONDS + DECODE_SECONDS_OF_NODE * _count_nodes(graph)


def _count_nodes(graph: Graph) -> int:
    return len(graph.nodes) + sum(map(_count_nodes, graph.subgraphs))


def _tune(program: Callable[..., object], decoded: DecodedJob, job: Job) -> None:
    """Runs a program on the first synthetic inputs that it takes, if it takes any that eager does."""
    call_all_regions(decoded.graph_module)
    for attempt in range(ATTEMPTS):
        inputs = inputs_of(job, decoded, first_seed=INPUT_SEED, attempt=attempt)
        if (refusal := find_refusal(inputs, decoded)) is not None:
            log.info("the graph is not run on synthetic inputs: %s", refusal)
            continue
        try:
            _run_once(program, inputs())
            return
        except Exception as error:
            if is_gpu_lost(decoded) and "device-side assert" in str(error):
                # Whether eager fails, too, another process has to find out: nothing runs here any more.
                log.info("the graph is not tuned further, an assertion fails on synthetic inputs: %s", error)
                return
            if not are_refused(inputs, decoded, error=error):
                raise
            log.info("the graph does not run on synthetic inputs: %s", error)


def _watching_sources(job: Job) -> AbstractContextManager[None]:
    # Kernels of the user's own are source code, which may say anything.
    return nullcontext() if job.graph.kernels else watching_sources(check_source)


def _run_once(program: Callable[..., object], inputs: list[torch.Tensor | int]) -> None:
    """Runs forward, and backward where there is one, so that what tunes at its first run has tuned."""
    outputs = program(*inputs)
    assert isinstance(outputs, list | tuple)
    # A parameter that is handed through requires gradients, too, but nothing was computed.
    tracked = [out for out in outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    if tracked:
        torch.autograd.backward(tracked, [torch.ones_like(out) for out in tracked])
    if any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs):
        torch.cuda.synchronize()


def _packed(program: FinishedProgram, libraries: list[BuiltLibrary]) -> Compiled:
    blob, stored = pack(program.content)
    sources = Sources(files=[SourceFile(path=path, text=text) for path, text in sorted(program.sources.items())])
    source_blob, stored_sources = pack(sources.SerializeToString(deterministic=True))
    compiled = Compiled(
        result=CompileResult(program=blob, sources=source_blob),
        blobs={blob.digest: stored, source_blob.digest: stored_sources},
    )
    # In an order that does not depend on threads.
    for library in sorted(libraries, key=lambda library: library.source_digest):
        compiled.add(library.source_digest, library.name, Path(library.path).read_bytes(), builder=BUILDER_INDUCTOR)
    for built in sorted(built_libraries(), key=lambda library: library.source_digest):
        compiled.add(built.source_digest, built.name, built.content, builder=BUILDER_TRITON)
    for kernel in sorted({kernel.digest: kernel for kernel in program.kernels}.values(), key=lambda each: each.digest):
        compiled.add(kernel.digest, kernel.name, kernel.content, builder=BUILDER_KERNEL)
    return compiled
