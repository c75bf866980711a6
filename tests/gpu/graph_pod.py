"""A process that is timed under CUDA graphs: `python -m tests.gpu.graph_pod HOW NAME`. Prints what it saw, as JSON.

"farm" and "inductor" go from a model to the third result; so do "reused", with the package of "publish", and "saved",
by a function that "save" has compiled ahead of time. "turns" compiles with both, and calls one after the other.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import json
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics

from compilefarm.client import stats
from compilefarm.core.processes import watch_processes
from compilefarm.torch_internals.counters import inductor_counts
from compilefarm.worker.kernel_work import count_kernel_work

from .graph_cases import CASES, GENERATE, Case, Function, Generation
from .phases import count_python_calls, timing_imports

_BACKENDS = {"farm": "compilefarm", "inductor": "inductor"}
# As "farm"; variables say whether packages are in use.
_WITH_PACKAGES = dict.fromkeys(("publish", "reused"), "compilefarm")
# What torch times for each frame, and once for each that it traces.
_FRAME, _TRACED = "_compile.compile_inner", "bytecode_tracing"
_CALLS_TO_REPLAY = 3
_LATER_CALLS = 1
_ROUNDS = 100
_TOKENS = 128
_ROUNDS_OF_TOKENS = 4

Call = Callable[[], object]
# Gives what makes a later call, and the seconds of each call to the third.
Start = Callable[[], tuple[Call, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=(*_BACKENDS, *_WITH_PACKAGES, "turns", "save", "saved"))
    parser.add_argument("name", choices=(*CASES, GENERATE))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--mode", default="reduce-overhead")
    parser.add_argument("--function", type=Path, help='what "save" writes and "saved" reads')
    parser.add_argument("--profile", metavar="FILE", help="where to write what the way to the third result is made of")
    arguments = parser.parse_args()
    # Before anything is measured.
    torch.ones(8, 8, device=arguments.device) @ torch.ones(8, 8, device=arguments.device)
    if arguments.how == "save":
        seen = _save(arguments)
    elif arguments.how == "turns":
        seen = _turns_of_tokens(arguments) if arguments.name == GENERATE else _turns(arguments)
    else:
        seen = _fresh(arguments)
    print(json.dumps({"how": arguments.how, "name": arguments.name, **seen}), flush=True)


def _fresh(arguments: argparse.Namespace) -> dict[str, Any]:
    """From a model to the third result; for generated tokens, to the third token that a compiled step gives."""
    obtain = _generating if arguments.name == GENERATE else _calling
    start = obtain(arguments)
    _settle()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started, work = watch_processes(further=["socket.connect"]), count_kernel_work(with_triton=True)
    profile = cProfile.Profile() if arguments.profile else None
    modules = set(sys.modules)
    begin = time.perf_counter()
    with timing_imports() as imports, profile or nullcontext():
        later, calls = start()
        _settle()
    seconds = time.perf_counter() - begin
    if profile is not None:
        with Path(arguments.profile).open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("cumulative").print_stats(120)
    for _ in range(_LATER_CALLS):
        later()
    _settle()
    return {
        "seconds": seconds,
        "calls": calls,
        "dynamo": _dynamo_seconds(),
        "frames": len(compilation_time_metrics.get(_TRACED, ())),
        "importing": sum(imports.values()),
        "imports": dict(sorted(imports.items(), key=lambda each: -each[1])[:12]),
        "modules": sorted(set(sys.modules) - modules) if arguments.profile else len(set(sys.modules) - modules),
        "started": [f"{each.event} {each}"[:80] for each in started],
        "compiled": work.compiled,
        "measured": work.benchmarks,
        "skips": inductor_counts()["cudagraph_skips"],
        **_memory(),
        **_said(),
    }


def _calling(arguments: argparse.Namespace) -> Start:
    case = CASES[arguments.name](arguments.device)
    given = [case.draw() for _ in range(_CALLS_TO_REPLAY)]

    def start() -> tuple[Call, list[float]]:
        function = _function(arguments, case)
        seconds = []
        for each in given:
            case.prepare()
            begin = time.perf_counter()
            case.call(function, each)
            _settle()
            seconds.append(time.perf_counter() - begin)
        case.prepare()
        return lambda: case.call(function, given[0]), seconds

    return start


def _function(arguments: argparse.Namespace, case: Case) -> Function:
    if arguments.how != "saved":
        return torch.compile(case.function, backend=(_BACKENDS | _WITH_PACKAGES)[arguments.how], mode=arguments.mode)
    with arguments.function.open("rb") as file:
        return functools.partial(torch.compiler.load_compiled_function(file), case.function)


def _save(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compiles ahead of time what a process without Dynamo loads."""
    case = CASES[arguments.name](arguments.device)
    torch._dynamo.config.enable_aot_compile = True
    options = torch._inductor.list_mode_options(arguments.mode)
    compiled: Any = torch.compile(
        case.function.forward,
        fullgraph=True,
        backend="compilefarm",
        options={**options, "guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
    )
    case.prepare()
    with torch.no_grad():
        compiled.aot_compile((case.draw(), {})).save_compiled_function(str(arguments.function))
    return _said()


def _generating(arguments: argparse.Namespace) -> Start:
    generation = Generation(arguments.device, backend=(_BACKENDS | _WITH_PACKAGES)[arguments.how])

    def start() -> tuple[Call, list[float]]:
        # The first token is of the prompt, which is not compiled.
        generation(1 + _CALLS_TO_REPLAY)
        return lambda: generation(1 + _CALLS_TO_REPLAY), []

    return start


def _dynamo_seconds() -> dict[str, float]:
    """Of tracing, and of the backend in it (torch/_dynamo/utils.py: compilation_time_metrics)."""
    found = {name: sum(each) for name, each in compilation_time_metrics.items()}
    names = {"whole": _FRAME, "backend": "OutputGraph.call_user_compiler"}
    return {name: found[key] for name, key in names.items() if key in found}


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _memory() -> dict[str, Any]:
    """Peaks, the memory of CUDA graphs, and how many graphs were recorded."""
    if not torch.cuda.is_available():
        return {}
    segments = torch.cuda.memory_snapshot()
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    return {
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "pool": sum(each["total_size"] for each in segments if tuple(each["segment_pool_id"]) != (0, 0)),
        "graphs": manager.new_graph_id().id if manager is not None else 0,
    }


def _said() -> dict[str, Any]:
    records = stats()
    phases: dict[str, float] = {}
    for record in records:
        for phase, spent in record.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return {
        "outcomes": [str(record.outcome) for record in records],
        "dynamo_outcomes": sorted({record.dynamo for record in records}),
        "messages": [record.message for record in records if record.message],
        "phases": phases,
    }


def _turns(arguments: argparse.Namespace) -> dict[str, Any]:
    case = CASES[arguments.name](arguments.device)
    functions: dict[str, Function] = {
        "inductor": torch.compile(case.function, mode=arguments.mode),
        # With another backend Dynamo does not take the program of the first: what is replayed by turns is cold.
        "inductor again": torch.compile(case.function, backend=_like_inductor(arguments.mode)),
        "farm": torch.compile(case.function, backend="compilefarm", mode=arguments.mode),
    }
    for name in functions:
        for _ in range(_CALLS_TO_REPLAY):
            case.prepare()
            case.call(functions[name], case.draw())
    _settle()
    apart = _difference(case, functions)
    calls = {name: _repeated(case, function) for name, function in functions.items()}
    python_calls = {name: count_python_calls(call) for name, call in calls.items()}
    seconds = _times(calls, rounds=_ROUNDS, prepare=case.prepare)
    return {
        "apart": apart,
        "python_calls": python_calls,
        "ms": _middle(seconds, 1e3),
        "ratios": _ratios(seconds),
        **_said(),
    }


def _like_inductor(mode: str) -> Callable[..., Any]:
    # As torch.compile calls Inductor (torch/__init__.py).
    inductor = torch._TorchCompileInductorWrapper(mode, None, False)
    return lambda graph_module, inputs: inductor(graph_module, inputs)


def _repeated(case: Case, function: Function) -> Call:
    given = case.draw()
    return lambda: case.call(function, given)


def _difference(case: Case, functions: Mapping[str, Function]) -> float:
    """Of the farm's results from Inductor's, as a share of the largest value."""
    given, found = case.draw(), []
    for name in ("inductor", "farm"):
        case.prepare()
        found.append(case.call(functions[name], given).double().clone())
    theirs, ours = found
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12)).item()


def _times(calls: Mapping[str, Call], *, rounds: int, prepare: Call = lambda: None) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        # Who comes first changes, since the first finds other things in the processor's caches.
        for name in list(calls) if number % 2 else list(reversed(calls)):
            prepare()
            _settle()
            begin = time.perf_counter()
            calls[name]()
            _settle()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def _middle(seconds: Mapping[str, list[float]], factor: float) -> dict[str, float]:
    return {name: factor * statistics.median(each) for name, each in seconds.items()}


def _ratios(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Quartiles of each way's seconds beside those of Inductor in the same round."""
    return {
        name: statistics.quantiles([ours / theirs for ours, theirs in zip(each, seconds["inductor"], strict=True)], n=4)
        for name, each in seconds.items()
        if name != "inductor"
    }


def _turns_of_tokens(arguments: argparse.Namespace) -> dict[str, Any]:
    generations = {name: Generation(arguments.device, backend=backend) for name, backend in _BACKENDS.items()}
    tokens = {name: generation(_TOKENS) for name, generation in generations.items()}
    same = sum(ours == theirs for ours, theirs in zip(tokens["farm"], tokens["inductor"], strict=True))
    calls: dict[str, Call] = {name: lambda each=each: each(_TOKENS) for name, each in generations.items()}  # type: ignore[misc]
    seconds = _times(calls, rounds=_ROUNDS_OF_TOKENS)
    rates = {name: _TOKENS / statistics.median(each) for name, each in seconds.items()}
    return {
        "apart": 1 - same / _TOKENS,
        "tokens_per_second": rates,
        "ms": _middle(seconds, 1e3 / _TOKENS),
        "ratios": _ratios(seconds),
        **_said(),
    }


if __name__ == "__main__":
    main()
