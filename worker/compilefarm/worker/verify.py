"""Verifies an artifact in a clean child: loads it as a pod would, without a compiler, and compares it with eager."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compilefarm.core.expressions import holds
from compilefarm.core.processes import Start, watch_processes
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.options import config_patches, recording_settings
from compilefarm.loader.load import load_artifact
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.comparison import Comparison, VerificationFailed, differing_names
from compilefarm.worker.cuda_graphs import CALLS, CudaGraphProgram, placed
from compilefarm.worker.eager import INPUT_SEED, Eager
from compilefarm.worker.exhaustion import find_exhausted
from compilefarm.worker.gpu_lock import GpuLock
from compilefarm.worker.inputs import draw_noise, keep_integers
from compilefarm.worker.kernel_work import KernelWork, count_kernel_work
from compilefarm.worker.process_groups import recording_calls, standing_in
from compilefarm.worker.results import Results, call, results_of
from compilefarm.worker.seeds import SEED, check_random, find_randomness
from compilefarm.worker.synthetic import ATTEMPTS, are_refused

TIMED_CALLS = 5
TIMED_SECONDS = 2.0
_WITHOUT_COMPILERS = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}
_LONGEST_COMMAND = 300
_LONGEST_REASON = 300
# Nearly all models compute in these.
_USUAL = (torch.float32, torch.bfloat16, torch.float16)

Program = Callable[..., Any]


class EagerRefuses(Exception):
    """Eager refuses all synthetic inputs, so the results of an artifact cannot be compared."""


def warm_up_comparison(device: torch.device) -> None:
    """Draws the random numbers of a verification, and compares a few elements on a GPU.

    CUDA loads each kernel of torch's libraries when it is first launched: for a small graph, most of the verification.
    """
    draw_noise(seed=INPUT_SEED)
    for dtype in _USUAL:
        results = {"floats": torch.ones(2, dtype=dtype, device=device), "integers": torch.ones(2, device=device).long()}
        Comparison().compare(results, results)
        differing_names(results, results)


def verify_task(task: VerifyTask, *, admitted: Admitted) -> Verification:
    """Verifies an artifact.

    Args:
        task: the artifact and its job.
        admitted: what the request may hold.

    Raises:
        VerificationFailed: it gives other results than eager, or it started a program.
        FarmError: it cannot be loaded.
    """
    variables = dict(os.environ)
    _hide_compilers()
    started_programs = watch_processes()
    kernel_work = count_kernel_work(with_triton=task.job.environment.HasField("cuda"))
    blobs = {blob.digest: blob.content for blob in task.blobs}
    with standing_in(task.job.graph), apply_ambient(task.job.ambient):
        decoded = decode(task.job, blobs=blobs, admitted=admitted)
        started = time.perf_counter()
        recording = recording_settings(task.job.options)
        program = load_artifact(task.manifest, blobs=blobs, recording=recording)
        if recording:
            program = CudaGraphProgram(program, static_inputs=decoded.static_inputs)
        figures = Verification(load_seconds=time.perf_counter() - started)
        check_finished = partial(_check_finished, started_programs, kernel_work)
        try:
            # What runs here would disturb what other jobs measure on this GPU, too.
            with GpuLock(Path(task.gpu_lock) if task.gpu_lock else None).held():
                if task.job.graph.kernels:
                    _compare_with_kernels(
                        task, decoded, program, figures, check_finished=check_finished, variables=variables
                    )
                else:
                    before = len(started_programs)
                    eager, theirs = first_run(decoded, task.job)
                    del started_programs[before:]
                    ours = _first_call(program, eager, figures, check_finished=check_finished)
                    compare(task, ours, theirs, program, eager, figures)
                    _time(program, eager, figures)
        except EagerRefuses as refusal:
            figures.not_compared = f"the graph does not run on synthetic inputs: {refusal}"[:_LONGEST_REASON]
    return figures


def first_run(decoded: DecodedJob, job: Job) -> tuple[Eager, Results]:
    """Runs eager on the first synthetic inputs that it accepts.

    It comes before the artifact: on a GPU, an error can leave a process in which nothing runs any more, so that nobody
    could tell afterwards whose fault it was.

    Raises:
        EagerRefuses: it accepts none.
    """
    for attempt in range(ATTEMPTS):
        eager = Eager(decoded, job, attempt=attempt)
        try:
            return eager, eager.run()
        except Exception as error:
            if find_exhausted(error) is not None:
                raise
            refusal = error
    raise EagerRefuses(refusal) from refusal


def _first_call(
    program: Program, eager: Eager, figures: Verification, *, check_finished: Callable[[Verification], None]
) -> Results:
    given = placed(program, eager.inputs())
    torch.manual_seed(SEED)
    started = time.perf_counter()
    outputs = call(program, given)
    figures.first_call_seconds = time.perf_counter() - started
    results = results_of(outputs, given, written=eager.written)
    check_finished(figures)
    return results


def _compare_with_kernels(
    task: VerifyTask,
    decoded: DecodedJob,
    program: Program,
    figures: Verification,
    *,
    check_finished: Callable[[Verification], None],
    variables: Mapping[str, str],
) -> None:
    """Compares a graph with Triton kernels of the user. The artifact runs first, as it has to bring its kernels along;
    eager compiles them.
    """
    eager = Eager(decoded, task.job)
    try:
        ours = _first_call(program, eager, figures, check_finished=check_finished)
    except VerificationFailed:
        raise
    except Exception as error:
        if are_refused(eager.inputs, decoded, error=error):
            raise EagerRefuses(error) from error
        raise
    _tune_eager(eager.program, eager.inputs(), variables)
    compare(task, ours, eager.run(), program, eager, figures)
    _time(program, eager, figures)


def _time(program: Program, eager: Eager, figures: Verification) -> None:
    """Measures calls, in the mode of the job: torch.func takes derivatives only where gradients are enabled."""
    given = eager.inputs()
    figures.call_seconds = _median_seconds(program, placed(program, given))
    figures.eager_call_seconds = _median_seconds(eager.program, given)


def _check_finished(started_programs: Sequence[Start], kernel_work: KernelWork, result: Verification) -> None:
    """Raises VerificationFailed if loading or calling the artifact compiled, measured or started anything."""
    result.compiled_kernels, result.benchmarks = kernel_work.compiled, kernel_work.benchmarks
    result.subprocesses = len(started_programs)
    if started_programs:
        raise VerificationFailed(f"loading and calling it started programs: {_counted(started_programs)}")
    if result.compiled_kernels or result.benchmarks:
        raise VerificationFailed(
            f"loading and calling it compiled {result.compiled_kernels} kernels and measured {result.benchmarks}"
        )


def _hide_compilers() -> None:
    os.environ.update(_WITHOUT_COMPILERS)


def _tune_eager(eager: Callable[..., Any], inputs: Sequence[Any], variables: Mapping[str, str]) -> None:
    """Runs eager once with compilers in reach, which compiles Triton kernels of the user.

    Those that are tuned measure their configurations at their first call, and write to the same tensors each time.
    """
    for name in _WITHOUT_COMPILERS:
        del os.environ[name]
    os.environ.update(variables)
    call(eager, inputs)


def _counted(started: Sequence[Start]) -> str:
    return "; ".join(
        f"{count} x {program[:_LONGEST_COMMAND]}" for program, count in Counter(map(str, started)).most_common(5)
    )


def _with_other_sizes(task: VerifyTask) -> Job | None:
    """Returns the job with every symbolic size one larger, if the guards allow it; None if no size may differ."""
    hints = [
        hint + 1 if not symbol.HasField("upper") or hint < symbol.upper else hint
        for symbol, hint in zip(task.job.symbols, task.job.hints, strict=True)
    ]
    if hints == list(task.job.hints) or not holds(task.manifest.guards, hints):
        return None
    other = Job()
    other.CopyFrom(task.job)
    other.hints[:] = hints
    return other


def compare(
    task: VerifyTask, ours: Results, theirs: Results, program: Program, eager: Eager, figures: Verification
) -> None:
    """Compares results at the sizes of the job, and at other sizes if symbols allow some."""
    # What is compared for other reasons leaves no figures.
    near = Comparison(inside=eager.inside, unordered=eager.unordered, unwritten=eager.unwritten)
    draws_alike = bool(config_patches(task.job.options)[0].get("fallback_random"))
    randomness = find_randomness(theirs, lambda seed: eager.run(seed=seed), draws_alike=draws_alike, near=near)
    nobodys = {name for name, positions in eager.unwritten.items() if bool(positions.all())}
    randomness = randomness.with_unsteady(nobodys, theirs)
    without = randomness.names
    # Other numbers are drawn in a higher precision.
    eager.comparison(figures, random=randomness.drawn).compare(ours, theirs, without=without)
    if without:
        check_random(ours, eager.run(program), theirs, randomness, near=near)
    tensors = {name for name, value in theirs.items() if isinstance(value, torch.Tensor)}
    figures.compared = len(tensors - without)
    figures.compared_by_seed, figures.unsteady = len(randomness.seeded), len(randomness.unsteady)
    if isinstance(program, CudaGraphProgram):
        for call_number in range(1, CALLS):
            replayed = Eager(eager.decoded, task.job, first_seed=INPUT_SEED + ATTEMPTS * call_number)
            _compare_beyond(program, replayed, figures, without=without, random=randomness.drawn)
    if task.job.graph.process_groups:
        _check_collectives(program, eager)
    other = _with_other_sizes(task)
    if other is not None:
        beyond = Eager(eager.decoded, other)
        _compare_beyond(program, beyond, figures, without=without, random=randomness.drawn)


def _check_collectives(program: Program, eager: Eager) -> None:
    """Ranks of one group may run a graph in different ways: this program, a compile of their own, or uncompiled."""
    with recording_calls() as theirs:
        eager.run()
    with recording_calls() as ours:
        eager.run(program)
    if ours != theirs:
        raise VerificationFailed(
            f"it calls {len(ours)} collectives where the graph calls {len(theirs)}, or calls them in another order:"
            " ranks that run the graph otherwise would wait for it"
        )


def _compare_beyond(
    program: Program, eager: Eager, figures: Verification, *, without: Set[str], random: Set[str]
) -> None:
    """Compares results for other inputs than the artifact was tuned for."""
    try:
        expected = eager.run()
    except Exception:  # noqa: BLE001 - whatever eager raises, the model does not take these sizes
        return
    eager.comparison(figures, random=random).compare(eager.run(program), expected, without=without)


def _median_seconds(program: Callable[..., Any], inputs: Sequence[Any]) -> float:
    seconds: list[float] = []
    restore_integers = keep_integers(inputs)
    while len(seconds) < TIMED_CALLS and sum(seconds) < TIMED_SECONDS:
        restore_integers()
        started = time.perf_counter()
        call(program, inputs)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
