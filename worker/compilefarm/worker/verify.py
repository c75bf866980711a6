"""What a child does with a check: load the artifact as a client would, no compiler in reach, and compare with eager."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from compilefarm.artifact.inductor.kernels import count_kernel_work
from compilefarm.artifact.load import load_artifact
from compilefarm.core.expressions import holds
from compilefarm.core.processes import Start, watch_processes
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.inputs import draw_noise, move_by_last_bits, random_inputs, restore_integers
from compilefarm.graph.options import config_patches
from compilefarm.graph.targets import nodes_of
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.comparison import Comparison, Results, VerificationFailed, differing_names
from compilefarm.worker.seeds import SEED, check_random, find_randomness
from compilefarm.worker.synthetic import are_refused

INPUT_SEED = 1
TIMED_CALLS = 5
TIMED_SECONDS = 2.0
_WITHOUT_COMPILERS = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}
_LONGEST_COMMAND = 300
_LONGEST_REASON = 300
_ORDERING = frozenset({"argsort", "kthvalue", "median", "mode", "msort", "sort", "topk"})
# Inputs up to this size are compared with what eager leaves of them, whether or not the graph writes to them.
_KEPT_BYTES = 1 << 28
# Seeds by which floats are moved to find out which integers hang on their last bits.
_MOVES = (1, 2, 3)
# Nearly all models compute in these.
_USUAL = (torch.float32, torch.bfloat16, torch.float16)


def check_once(device: torch.device) -> None:
    """Draws the numbers of a check, and compares a few elements on a GPU.

    CUDA reads each kernel of torch's libraries when it is launched first: for a small graph, most of its check.
    """
    draw_noise(seed=INPUT_SEED)
    for dtype in _USUAL:
        results = {"floats": torch.ones(2, dtype=dtype, device=device), "integers": torch.ones(2, device=device).long()}
        Comparison(is_ordered=True).compare(results, results)
        differing_names(results, results)


def verify_task(task: VerifyTask, *, admitted: Admitted) -> Verification:
    """Checks an artifact.

    Args:
        task: the artifact and its job.
        admitted: what the request may hold.

    Raises:
        VerificationFailed: it gives other results than eager, or it started a program.
        FarmError: it cannot be loaded.
    """
    surroundings = dict(os.environ)
    _hide_compilers()
    started_programs = watch_processes()
    kernel_work = count_kernel_work(with_triton=task.job.environment.HasField("cuda"))
    blobs = {blob.digest: blob.content for blob in task.blobs}
    result = Verification()
    with apply_ambient(task.job.ambient):
        decoded = decode(task.job, blobs=blobs, admitted=admitted)
        started = time.perf_counter()
        program = load_artifact(task.manifest, blobs=blobs)
        result.load_seconds = time.perf_counter() - started

        # Graphs may change their inputs in place, so each run has its own.
        def inputs(job: Job = task.job) -> list[torch.Tensor | int]:
            return random_inputs(job, seed=INPUT_SEED)

        try:
            given = inputs()
            torch.manual_seed(SEED)
            started = time.perf_counter()
            outputs = _call(program, given)
            result.first_call_seconds = time.perf_counter() - started
            ours = _all_that_is_left(outputs, given, written=decoded.written_inputs)
            # Weights may fill a GPU as they are.
            del given, outputs
        except RuntimeError as error:
            if not are_refused(inputs(), decoded, error=error):
                raise
            result.not_compared = f"the graph does not run on synthetic inputs: {error}"[:_LONGEST_REASON]
        result.compiled_kernels, result.benchmarks = kernel_work.compiled, kernel_work.benchmarks
        _check_finished(started_programs, result)
        if result.not_compared:
            return result

        # Dynamo flattens outputs; the decoded graph returns them as they were captured.
        eager = decoded.graph_module
        if task.job.graph.kernels:
            _tune_eager(eager, inputs(), surroundings)
        _compare(task, ours, inputs, program, decoded, result)
        with torch.no_grad():
            given = inputs()
            result.call_seconds = _median_seconds(program, given)
            result.eager_call_seconds = _median_seconds(eager, given)
    return result


def _check_finished(started_programs: Sequence[Start], result: Verification) -> None:
    """Whether the worker has left nothing to do."""
    result.subprocesses = len(started_programs)
    if started_programs:
        raise VerificationFailed(f"loading and calling it started programs: {_counted(started_programs)}")
    if result.compiled_kernels or result.benchmarks:
        raise VerificationFailed(
            f"loading and calling it compiled {result.compiled_kernels} kernels and measured {result.benchmarks}"
        )


def _hide_compilers() -> None:
    os.environ.update(_WITHOUT_COMPILERS)


def _tune_eager(eager: Callable[..., Any], inputs: Sequence[Any], surroundings: Mapping[str, str]) -> None:
    """Runs kernels of the user's own once by themselves, which compiles them.

    Those that are tuned measure their configurations at their first call, and write to the same tensors each time.
    """
    for name in _WITHOUT_COMPILERS:
        del os.environ[name]
    os.environ.update(surroundings)
    _call(eager, inputs)


def _counted(started: Sequence[Start]) -> str:
    return "; ".join(
        f"{count} x {program[:_LONGEST_COMMAND]}" for program, count in Counter(map(str, started)).most_common(5)
    )


def _with_other_sizes(task: VerifyTask) -> Job | None:
    """The job with each number one larger that may be, where the guards allow it; None where nothing may differ."""
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


def _compare(
    task: VerifyTask,
    ours: Results,
    inputs: Callable[..., list[torch.Tensor | int]],
    program: Callable[..., Any],
    decoded: DecodedJob,
    result: Verification,
) -> None:
    """Compares at the sizes of the job, and at others where it may have others."""
    eager, written = decoded.graph_module, decoded.written_inputs
    is_ordered = _is_ordered(eager)
    # What is compared for other reasons leaves no figures.
    near = Comparison(is_ordered=is_ordered)
    theirs = _run(eager, inputs(), written=written)
    draws_alike = bool(config_patches(task.job.options)[0].get("fallback_random"))
    randomness = find_randomness(
        theirs, lambda seed: _run(eager, inputs(), written=written, seed=seed), draws_alike=draws_alike, near=near
    )
    comparison = Comparison(is_ordered=is_ordered, found=result, moved=_moved(decoded, inputs))
    comparison.compare(ours, theirs, without=randomness.names)
    if randomness.names:
        check_random(ours, _run(program, inputs(), written=written), theirs, randomness, near=near)
    tensors = {name for name, value in theirs.items() if isinstance(value, torch.Tensor)}
    result.compared = len(tensors - randomness.names)
    result.compared_by_seed, result.unsteady = len(randomness.seeded), len(randomness.unsteady)
    other = _with_other_sizes(task)
    if other is not None:
        beyond = Comparison(is_ordered=is_ordered, found=result, moved=_moved(decoded, lambda: inputs(other)))
        _compare_beyond(lambda: inputs(other), program, decoded, beyond, without=randomness.names)


def _compare_beyond(
    inputs: Callable[[], Sequence[Any]],
    program: Callable[..., Any],
    decoded: DecodedJob,
    comparison: Comparison,
    *,
    without: Set[str],
) -> None:
    """Compares at sizes that the artifact was not tuned for."""
    try:
        expected = _run(decoded.graph_module, inputs(), written=decoded.written_inputs)
    except Exception:  # noqa: BLE001 - whatever eager raises, the model does not take these sizes
        return
    comparison.compare(_run(program, inputs(), written=decoded.written_inputs), expected, without=without)


def _moved(decoded: DecodedJob, inputs: Callable[[], list[torch.Tensor | int]]) -> Callable[[], Sequence[Results]]:
    """Gives results of eager with its floats moved by a few last bits; the same ones whenever it is called."""

    @functools.cache
    def run() -> Sequence[Results]:
        eager = decoded.graph_module
        results, epsilon = [], _coarsest_epsilon(eager)
        for seed in _MOVES:
            given = inputs()
            move_by_last_bits(given, seed=seed, epsilon=epsilon)
            try:
                results.append(_run(eager, given, written=decoded.written_inputs))
            except Exception:  # noqa: BLE001 - whatever eager raises, the graph does not take these inputs
                break
        return results

    return run


def _coarsest_epsilon(graph_module: torch.fx.GraphModule) -> float:
    """Smallest step of the coarsest floats that a graph computes, such as those of autocast. Floats of eight bits are
    what wider ones are rounded to, and nothing is computed in them.
    """
    values = (node.meta.get("example_value") for node in nodes_of(graph_module))
    floats = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return max((torch.finfo(value.dtype).eps for value in floats if value.itemsize > 1), default=0.0)


def _run(program: Callable[..., Any], inputs: Sequence[Any], *, written: Set[int], seed: int = SEED) -> dict[str, Any]:
    torch.manual_seed(seed)
    return _all_that_is_left(_call(program, inputs), inputs, written=written)


def _all_that_is_left(outputs: Sequence[Any], inputs: Sequence[Any], *, written: Set[int]) -> dict[str, Any]:
    """Outputs, gradients, and inputs afterwards, by what they are.

    Of the inputs all that the graph may write to: parameters of an optimizer, and large ones, too. The others should be
    as they were; parameters and large ones among them are not worth a second copy on a GPU.
    """
    left = {f"output {number}": output for number, output in enumerate(outputs)}
    for number, given in enumerate(inputs):
        if not isinstance(given, torch.Tensor):
            continue
        if number in written or (not given.requires_grad and given.nbytes <= _KEPT_BYTES):
            left[f"input {number} afterwards"] = given
    # What is handed through requires gradients, too, but nothing was computed.
    tracked = [out for out in outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
    if tracked:
        torch.autograd.backward(tracked, [torch.ones_like(out) for out in tracked])
        for number, given in enumerate(inputs):
            if isinstance(given, torch.Tensor) and given.grad is not None:
                left[f"gradient of input {number}"] = given.grad
    return left


def _call(program: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    outputs = program(*inputs)
    if any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs):
        torch.cuda.synchronize()
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _is_ordered(graph_module: torch.fx.GraphModule) -> bool:
    """Whether what a graph computes has one order.

    Equal elements come out of a sort in any, and there are many in synthetic inputs: zeros for all tokens make the
    experts of a mixture choose among equals.
    """
    names = {
        (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).partition(".")[0]
        for node in nodes_of(graph_module)
    }
    return names.isdisjoint(_ORDERING)


def _median_seconds(program: Callable[..., Any], inputs: Sequence[Any]) -> float:
    seconds: list[float] = []
    while len(seconds) < TIMED_CALLS and sum(seconds) < TIMED_SECONDS:
        restore_integers(inputs)
        started = time.perf_counter()
        _call(program, inputs)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
