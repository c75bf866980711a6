"""One pod: `python -m tests.gpu.pod DEVICE EXPECTED [NAME ...]`. Prints what became of each workload, as JSON by line.

EXPECTED holds the results of eager by workload. A pod that finds no such file computes and writes it; kernels of the
user's own need a compiler for that, so that the pods that have none read it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from compilefarm.client import Farm, stats
from compilefarm.core.processes import Start, watch_processes
from compilefarm.worker.kernel_work import KernelWork, count_kernel_work

from .workloads import WORKLOADS, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a pod saw of a workload.

    Attributes:
        workload: its name.
        outcomes: of its graphs.
        messages: why graphs did not come from the farm.
        difference: absolute difference from eager, of the tensor in which it is the largest share of the magnitude.
        magnitude: largest value of eager in that tensor.
        total_seconds: to the first results.
        seconds: of it with the farm, by phase.
        bytes_fetched: from the farm.
        started: programs and connections that this process started.
        compiled_kernels: Triton kernels that this process compiled.
        benchmarks: Triton kernels that this process measured.
        error: what was raised.
    """

    workload: str
    outcomes: list[str]
    messages: list[str]
    difference: float = float("nan")
    magnitude: float = float("nan")
    total_seconds: float = float("nan")
    seconds: dict[str, float]
    bytes_fetched: int
    started: list[str]
    compiled_kernels: int
    benchmarks: int
    error: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", type=torch.device)
    parser.add_argument("expected", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or list(WORKLOADS)
    if not arguments.expected.exists():
        torch.save(
            {name: _results(WORKLOADS[name], arguments.device, lambda function: function) for name in names},
            arguments.expected,
        )
        torch.compiler.reset()
    expected = torch.load(arguments.expected, map_location=arguments.device)
    # gRPC's own connections are not among these, but a download by Python would be.
    started = watch_processes(further=["socket.connect"])
    work = count_kernel_work(with_triton=arguments.device.type == "cuda")
    farm = Farm()
    for name in names:
        seen = _look(name, farm, arguments.device, expected[name], started, work)
        print(json.dumps(asdict(seen)), flush=True)
    return 0


def _look(
    name: str, farm: Farm, device: torch.device, expected: list[torch.Tensor], started: list[Start], work: KernelWork
) -> Seen:
    workload = WORKLOADS[name]
    before, compiled_before, benchmarks_before = len(stats()), work.compiled, work.benchmarks
    started.clear()
    measured: dict[str, Any] = {}
    begin = time.perf_counter()
    try:
        given = _results(workload, device, lambda function: _compiled(workload, farm, function))
        measured["total_seconds"] = time.perf_counter() - begin
        measured |= _compare(given, expected)
    except Exception as error:  # noqa: BLE001 - a line of the table, and the next workload has its turn
        measured["error"] = f"{type(error).__name__}: {error}"
    records = stats()[before:]
    seconds: dict[str, float] = {}
    for record in records:
        for phase, spent in record.seconds.items():
            seconds[str(phase)] = seconds.get(str(phase), 0.0) + spent
    return Seen(
        workload=name,
        outcomes=[str(record.outcome) for record in records],
        messages=[record.message for record in records if record.message],
        seconds=seconds,
        bytes_fetched=sum(record.bytes_fetched for record in records),
        started=[f"{each.event} {each}"[:200] for each in started],
        compiled_kernels=work.compiled - compiled_before,
        benchmarks=work.benchmarks - benchmarks_before,
        **measured,
    )


def _compiled(workload: Workload, farm: Farm, function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(
        function,
        backend=farm.backend,
        dynamic=workload.dynamic,
        mode=workload.mode,
        options=None if workload.options is None else dict(workload.options),
    )
    return compiled


def _results(
    workload: Workload, device: torch.device, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[torch.Tensor]:
    """All that the calls compute: results, arguments that may have been written to, gradients."""
    function, calls = workload.make(device)
    wrapped = wrap(function)
    weights = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    found: list[torch.Tensor] = []
    with torch.set_grad_enabled(workload.training):
        for arguments in calls:
            # What CUDA graphs compute lies where the next call writes.
            torch.compiler.cudagraph_mark_step_begin()
            result = wrapped(*arguments)
            results = [each.clone() for each in (result if isinstance(result, tuple) else (result,))]
            if workload.training:
                torch.autograd.backward([tensor.square().sum() for tensor in results])
            found += [*results, *arguments, *_taken_gradients((*weights, *arguments))]
    if device.type == "cuda":
        torch.cuda.synchronize()
    return [tensor.detach() for tensor in found]


def _taken_gradients(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the gradients of some tensors, which have none afterwards."""
    taken = [tensor.grad.clone() for tensor in tensors if tensor.grad is not None]
    for tensor in tensors:
        tensor.grad = None
    return taken


def _compare(given: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, float]:
    """Difference and magnitude of the tensor that is off by the largest share of its magnitude."""
    pairs = [
        ((ours.double() - theirs.double().to(ours.device)).abs().max().item(), theirs.double().abs().max().item())
        for ours, theirs in zip(given, expected, strict=True)
    ]
    difference, magnitude = max(pairs, key=lambda pair: pair[0] / max(pair[1], 1e-12))
    return {"difference": difference, "magnitude": magnitude}


if __name__ == "__main__":
    sys.exit(main())
