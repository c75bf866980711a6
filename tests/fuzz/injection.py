"""Looks for text of a request that becomes code: `python3 dev.py fuzz injection --seconds 600`.

Requests in which one text is a marker are decoded as a worker does, and compiled for the CPU up to the sources. No text
may come out in them but in a literal or a comment, and none may be run. C++ is not built: its source
is looked at.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import logging
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor.utils import fresh_cache

from compilefarm.artifact.inductor.generated_sources import watching_sources
from compilefarm.artifact.inductor.programs import compile_to_program
from compilefarm.core.errors import FarmError
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import DecodedJob, GraphRejected
from compilefarm.graph.options import config_patches
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.source_check import UnexpectedSource, check_source

from .markers import WORD, Marked, blobs_of_seeds, marked

_CPP_LITERALS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'""", re.DOTALL)


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
    try:
        inductor, functorch = config_patches(job.options)
        with apply_ambient(job.ambient):
            decoded = decode(job, blobs=blobs_of_seeds(), admitted=Admitted())
            return _compile(decoded, inductor=inductor, functorch=functorch)
    except (FarmError, GraphRejected):
        return "refused"


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
    """The names in a module, and the C++ in its literals without the literals there."""
    code = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str() as text) if "#include" in text:
                code.append(_CPP_LITERALS.sub("", text))
            case ast.Constant(value=str() as text) if "@triton.jit" in text:
                code.append(_code_of_python(text))
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                code.append(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                code.append(name)
            case ast.keyword(arg=str() as name):
                code.append(name)
    return "\n".join(code)


@contextmanager
def _building_nothing() -> Iterator[None]:
    """Inside, C++ is written and not built."""
    cache: Any = importlib.import_module("torch._inductor.codecache").CppCodeCache

    def load_async(cls: Any, main_code: str, *_: Any, **__: Any) -> Any:
        look_at(main_code, "main.cpp")
        library = ModuleType("not_built")
        library.kernel = lambda *_: None  # type: ignore[attr-defined]
        return lambda: library

    # Which vector instructions work is found out by building programs.
    no_vectors = mock.patch("torch._inductor.cpu_vec_isa.valid_vec_isa_list", return_value=[])
    with mock.patch.object(cache, "load_async", classmethod(load_async)), no_vectors:
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="to try the same requests again")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    seed = arguments.seed if arguments.seed is not None else Random().randrange(1 << 32)
    outcomes: Counter[str] = Counter()
    ends = time.monotonic() + arguments.seconds
    for request in marked(Random(seed)):
        if time.monotonic() > ends:
            break
        try:
            outcomes[try_request(request)] += 1
        except Escaped as error:
            print(f"seed {seed}, request {sum(outcomes.values())}: {error}")
            return 1
    print(f"torch {torch.__version__}, seed {seed}: {dict(outcomes)}, and nothing came out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
