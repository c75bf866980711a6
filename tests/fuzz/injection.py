"""Looks for text of a request that becomes code: `python -m tests.fuzz.injection --seconds 600 --processes 8`.

Requests in which one text is a marker are decoded as a worker does, and compiled up to the sources, for the CPU and for
a GPU that is not there. No text may come out in them but in a literal or a comment, and none may be run. C++ and
kernels for Triton are not built: their sources are looked at.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

from compilefarm.builder.generated_sources import watching_sources
from compilefarm.core.errors import FarmError
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.compiling import compile_to_program
from compilefarm.graph.decode import DecodedJob, GraphRejected
from compilefarm.graph.options import config_patches
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.source_check import UnexpectedSource, check_source

from .imagined_gpu import imagining_a_gpu
from .markers import WORD, Marked, blobs_of_seeds, marked

FOUND = "text came out"
ENDED = "ended the process"
# How many requests of a kind came to what.
Outcomes = Counter[tuple[str, str]]
_CPP_LITERALS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'""", re.DOTALL)
# Before a wrapper may stand, as text, what tunes its kernels (torch/_inductor/graph.py: _compile_to_module).
_TUNING = "\nCompile-time auto-tuning block: \n"
_SANITIZED_QUOTES = r"\"\"\""


class Escaped(AssertionError):
    """Text of a request came out as code."""


def try_request(request: Marked) -> str:
    """What becomes of a request: "refused", "failed" or "compiled".

    Raises:
        Escaped: its marker came out of its literal, or ran.
    """
    try:
        outcome = _outcome(request.job)
    except (UnexpectedSource, Escaped) as error:
        raise Escaped(f"{request.place}: {error}\n{request.job}") from error
    if hasattr(builtins, WORD):
        delattr(builtins, WORD)
        raise Escaped(f"{request.place}: it ran\n{request.job}")
    return outcome


def _outcome(job: Job) -> str:
    # Captured here, where there is no GPU yet.
    blobs = blobs_of_seeds()
    on_gpu = imagining_a_gpu() if _is_on_gpu(job) else nullcontext()
    try:
        inductor, functorch = config_patches(job.options)
        with apply_ambient(job.ambient), on_gpu:
            decoded = decode(job, blobs=blobs, admitted=Admitted())
            return _compile(decoded, inductor=inductor, functorch=functorch)
    except (FarmError, GraphRejected):
        return "refused"


def _is_on_gpu(job: Job) -> bool:
    return any(given.tensor.device.type == "cuda" for given in job.inputs)


def _compile(decoded: DecodedJob, *, inductor: dict[str, object], functorch: dict[str, object]) -> str:
    with fresh_cache(), _building_nothing(), watching_sources(look_at):
        try:
            compile_to_program(
                decoded.graph_module,
                decoded.inputs,
                fake_mode=decoded.fake_mode,
                inductor_options=inductor,
                functorch_options=functorch,
            )
        except Exception as error:
            if isinstance(error, UnexpectedSource | Escaped):
                raise
            # Inductor cannot compile every graph that torch takes, and here it cannot save any with C++ in it.
            return "failed"
    return "compiled"


def look_at(source: str, extension: str) -> None:
    """Looks for the marker outside of literals and comments, and at all that the worker looks at.

    Raises:
        Escaped, UnexpectedSource: text came out.
    """
    if WORD in (_code_of_python(source) if extension.endswith("py") else _CPP_LITERALS.sub("", source)):
        raise Escaped(f"the marker is code:\n{source}")
    check_source(source, extension)


def _code_of_python(source: str) -> str:
    """The names in a module, and the C++ in its literals without the literals there.

    Raises:
        Escaped: it is no Python, as where a text ended early.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise Escaped(f"{error} in:\n{source}") from error
    code = []
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str() as text) if "#include" in text:
                code.append(_CPP_LITERALS.sub("", text))
            case ast.Constant(value=str() as text) if "@triton.jit" in text:
                code.append(_code_of_python(text.removeprefix(_TUNING).replace(_SANITIZED_QUOTES, '"""')))
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                code.append(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                code.append(name)
            case ast.keyword(arg=str() as name):
                code.append(name)
    return "\n".join(code)


@contextmanager
def _building_nothing() -> Iterator[None]:
    """Inside, C++ and kernels for Triton are written and not built, and no processes are started to build them."""
    cache: Any = importlib.import_module("torch._inductor.codecache").CppCodeCache

    def load_async(cls: Any, main_code: str, *_: Any, **__: Any) -> Any:
        look_at(main_code, "main.cpp")
        library = ModuleType("not_built")
        library.kernel = lambda *_: None  # type: ignore[attr-defined]
        return lambda: library

    def triton(_: Any, kernel_name: str, source_code: str, *__: Any, **___: Any) -> Any:
        return lambda *_, **__: None

    compile_kernels: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    # Which vector instructions work is found out by building programs.
    no_vectors = mock.patch("torch._inductor.cpu_vec_isa.valid_vec_isa_list", return_value=[])
    no_cpp = mock.patch.object(cache, "load_async", classmethod(load_async))
    no_triton = mock.patch.object(compile_kernels, "triton", triton)
    with no_cpp, no_triton, no_vectors, inductor_config.patch(compile_threads=1):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="to try the same requests again")
    parser.add_argument("--processes", type=int, default=1, help="with a seed each, counting up from the first")
    parser.add_argument("--counts", type=Path, default=None, help="a file for what became of the requests")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else Random().randrange(1 << 32)
    if arguments.processes > 1:
        return _try_in_processes(range(seed, seed + arguments.processes), seconds=arguments.seconds)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, seed {seed}", flush=True)
    outcomes = _try_for(arguments.seconds, marked(Random(seed)))
    if arguments.counts is not None:
        arguments.counts.write_text(json.dumps([[*key, count] for key, count in outcomes.items()]))
        return 0
    return _report(outcomes, seeds=f"seed {seed}")


def _report(outcomes: Outcomes, *, seeds: str) -> int:
    for (kind, outcome), count in sorted(outcomes.items()):
        print(f"{count:8} {kind}: {outcome}")
    finds = sum(count for (_, outcome), count in outcomes.items() if outcome in (FOUND, ENDED))
    print(f"torch {torch.__version__}, {seeds}: {outcomes.total()} requests, {finds} finds", flush=True)
    return 1 if finds else 0


def _try_in_processes(seeds: range, *, seconds: float) -> int:
    """Runs this module once for each seed, each on one core, and reports all of it together; finds are printed as they
    come. A process that ends otherwise than it should is a find.
    """
    outcomes: Outcomes = Counter()
    with TemporaryDirectory() as folder:
        files = {seed: Path(folder, str(seed)) for seed in seeds}
        running = {
            seed: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.fuzz.injection",
                    f"--seconds={seconds}",
                    f"--seed={seed}",
                    f"--counts={counts}",
                ],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for seed, counts in files.items()
        }
        for seed, process in running.items():
            status = process.wait()
            if status:
                print(f"seed {seed}: the process ended with {status}", flush=True)
                outcomes["process", ENDED] += 1
            else:
                outcomes.update({(kind, outcome): n for kind, outcome, n in json.loads(files[seed].read_text())})
    return _report(outcomes, seeds=f"seeds {seeds.start} to {seeds.stop - 1}")


def _try_for(seconds: float, requests: Iterator[Marked]) -> Outcomes:
    """What became of how many requests, by their kind; finds are printed."""
    outcomes: Outcomes = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        request = next(requests)
        try:
            outcomes[request.kind, try_request(request)] += 1
        except Escaped as error:
            print(f"request {outcomes.total()}: {error}", flush=True)
            outcomes[request.kind, FOUND] += 1
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
