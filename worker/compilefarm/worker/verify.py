"""What a child does with a check: load the artifact as a client would, no compiler in reach, and compare with eager."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.artifact.inductor.kernels import KernelWork, count_kernel_work
from compilefarm.artifact.load import load_artifact
from compilefarm.core.expressions import holds
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.inputs import random_inputs, restore_integers
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.decoding import Admitted, decode
from compilefarm.worker.synthetic import are_refused

INPUT_SEED = 1
TIMED_CALLS = 5
TIMED_SECONDS = 2.0
_WITHOUT_COMPILERS = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}
_LONGEST_COMMAND = 300
_LONGEST_REASON = 300
_ORDERING = frozenset({"argsort", "kthvalue", "median", "mode", "msort", "sort", "topk"})
# Inputs up to this size are compared with what eager leaves of them.
_KEPT_BYTES = 1 << 28
# Largest difference allowed, as a share of the largest magnitude in the output. A wrong kernel is off by about all of
# it; another order of additions, or TF32 for float32, by much less.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 2e-2


class VerificationFailed(Exception):
    """The artifact does not do what the graph does, or is not finished work."""


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
    started_programs = _count_programs()
    # Triton takes a second to import, and a CPU job never does.
    kernel_work = count_kernel_work() if task.job.environment.HasField("cuda") else KernelWork()
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
            started = time.perf_counter()
            outputs = _call(program, given)
            result.first_call_seconds = time.perf_counter() - started
            ours = _all_that_is_left(outputs, given)
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
        eager, is_ordered = decoded.graph_module, _is_ordered(decoded.graph_module)
        if task.job.graph.kernels:
            _tune_eager(eager, inputs(), surroundings)
        theirs = _run(eager, inputs())
        if _is_random(theirs, _run(eager, inputs())):
            result.not_compared = "eager gives other results each time"
        else:
            _compare(ours, theirs, result, is_ordered=is_ordered)
            other = _with_other_sizes(task)
            if other is not None:
                _compare_beyond(lambda: inputs(other), program, eager, result, is_ordered=is_ordered)
        with torch.no_grad():
            given = inputs()
            result.call_seconds = _median_seconds(program, given)
            result.eager_call_seconds = _median_seconds(eager, given)
    return result


def _check_finished(started_programs: Sequence[str], result: Verification) -> None:
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


def _count_programs() -> list[str]:
    """A list that grows with every program this process starts from now on."""
    started: list[str] = []

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"):
            started.append(" ".join(map(str, arguments[1])) if event == "subprocess.Popen" else str(arguments[0]))

    sys.addaudithook(listen)
    return started


def _counted(programs: Sequence[str]) -> str:
    return "; ".join(f"{count} x {program[:_LONGEST_COMMAND]}" for program, count in Counter(programs).most_common(5))


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


def _compare_beyond(
    inputs: Callable[[], Sequence[Any]],
    program: Callable[..., Any],
    eager: Callable[..., Any],
    result: Verification,
    *,
    is_ordered: bool,
) -> None:
    """Compares at sizes that the artifact was not tuned for."""
    try:
        expected = _run(eager, inputs())
    except Exception:  # noqa: BLE001 - whatever eager raises, the model does not take these sizes
        return
    _compare(_run(program, inputs()), expected, result, is_ordered=is_ordered)


def _run(program: Callable[..., Any], inputs: Sequence[Any]) -> dict[str, Any]:
    return _all_that_is_left(_call(program, inputs), inputs)


def _all_that_is_left(outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Outputs, gradients, and inputs that may have been written to, by what they are.

    Parameters are written to by optimizers alone, and large inputs are not worth a second copy on a GPU.
    """
    left = {f"output {number}": output for number, output in enumerate(outputs)}
    for number, given in enumerate(inputs):
        if isinstance(given, torch.Tensor) and not given.requires_grad and given.nbytes <= _KEPT_BYTES:
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


def _is_random(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two runs of eager on equal inputs differ: a graph with dropout has nothing to be compared with."""
    return any(
        isinstance(a, torch.Tensor) and not torch.equal(_plain(a), _plain(second[name])) for name, a in first.items()
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that can be compared: NaN equals nothing, and types of eight bits compare nothing."""
    wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize < torch.float32.itemsize else tensor
    return torch.nan_to_num(wide)


def _compare(ours: Mapping[str, Any], theirs: Mapping[str, Any], result: Verification, *, is_ordered: bool) -> None:
    if ours.keys() != theirs.keys():
        # Only a list of them that is too short or too long, or gradients that nobody expects, can lead here.
        differing = ", ".join(sorted(ours.keys() ^ theirs.keys()))
        raise VerificationFailed(f"the artifact or eager alone has {differing}")
    for name, expected in theirs.items():
        if isinstance(expected, torch.Tensor):
            _compare_tensor(name, ours[name], expected, result, is_ordered=is_ordered)


def _compare_tensor(name: str, ours: Any, theirs: torch.Tensor, result: Verification, *, is_ordered: bool) -> None:
    if not isinstance(ours, torch.Tensor) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise VerificationFailed(f"{name} is {_kind(ours)} instead of {_kind(theirs)}")
    if not theirs.is_floating_point() or theirs.numel() == 0:
        # Integers come out of comparisons and arg-sorts, where a last bit of difference before may turn one around.
        return
    tolerance = _TOLERANCES.get(theirs.dtype, _TF32_TOLERANCE)
    if theirs.is_cuda and torch.get_float32_matmul_precision() != "highest":
        tolerance = max(tolerance, _TF32_TOLERANCE)
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        raise VerificationFailed(f"{name} is not finite where eager is, or the other way round")
    finite = theirs.isfinite()
    magnitude = theirs[finite].abs().max().item() if finite.any() else 0.0
    difference = _difference(ours[finite], theirs[finite])
    if not is_ordered and difference > tolerance * max(magnitude, 1e-3):
        difference = _difference(ours[finite].sort().values, theirs[finite].sort().values)
    result.largest_difference = max(result.largest_difference, difference)
    result.relative_tolerance = max(result.relative_tolerance, tolerance)
    result.absolute_tolerance = max(result.absolute_tolerance, tolerance * max(magnitude, 1e-3))
    if difference > tolerance * max(magnitude, 1e-3):
        raise VerificationFailed(
            f"{name} differs from eager by {difference:.3g} where values reach {magnitude:.3g}; "
            f"{tolerance:.0e} of that is allowed"
        )


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours - theirs).abs().max().item() if ours.numel() else 0.0


def _is_ordered(graph_module: torch.fx.GraphModule) -> bool:
    """Whether what a graph computes has one order.

    Equal elements come out of a sort in any, and there are many in synthetic inputs: zeros for all tokens make the
    experts of a mixture choose among equals.
    """
    names = {
        (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).partition(".")[0]
        for module in graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    }
    return names.isdisjoint(_ORDERING)


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _median_seconds(program: Callable[..., Any], inputs: Sequence[Any]) -> float:
    seconds: list[float] = []
    while len(seconds) < TIMED_CALLS and sum(seconds) < TIMED_SECONDS:
        restore_integers(inputs)
        started = time.perf_counter()
        _call(program, inputs)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
