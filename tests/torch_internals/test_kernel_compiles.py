"""Canaries of torch_internals/kernel_compiles.py."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from compilefarm.torch_internals.kernel_compiles import look_at_gpu, start_longest_first
from tests.lean import LEAN

_ASSEMBLERS = """
import importlib, os
from compilefarm.torch_internals.kernel_compiles import start_processes, use_assembler_of_processes
use_assembler_of_processes()
here = os.environ.pop("TRITON_PTXAS_PATH", "")
compiling = importlib.import_module("torch._inductor.async_compile")
start_processes()
there = compiling.AsyncCompile.process_pool().submit(os.getenv, "TRITON_PTXAS_PATH", "").result(timeout=120)
compiling.shutdown_compile_workers()
print([here, there])
"""


@dataclass(frozen=True, slots=True)
class _Variant:
    """Of a kernel, as Inductor describes it."""

    name: str
    said: dict[str, object]

    def info_dict(self) -> dict[str, object]:
        return self.said


@pytest.mark.compiles
def test_kernels_are_assembled_alike_here_and_where_they_are_compiled() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    command = [sys.executable, "-W", "ignore", LEAN, "-c", _ASSEMBLERS]
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    here, there = ast.literal_eval(said.stdout.splitlines()[-1])
    assert here == there, "use_assembler_of_processes sets what torch/_inductor/compile_worker sets"


def test_the_gpu_is_looked_at_before_processes_start() -> None:
    # Without a GPU nothing is done.
    look_at_gpu()
    assert callable(importlib.import_module("torch._inductor.async_compile").pre_fork_setup)


def test_variants_that_take_longest_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing = importlib.import_module("torch._inductor.select_algorithm").AlgorithmSelectorCache
    assert list(inspect.signature(choosing.make_precompile_fn).parameters)[:2] == ["self", "choices"]
    began = list[str]()

    def compile_ahead(_: object, choices: Sequence[_Variant], *, name: str) -> str:
        began.extend(each.name for each in choices)
        return name

    monkeypatch.setattr(choosing, "make_precompile_fn", compile_ahead)
    start_longest_first()
    given = [
        _Variant("no kernel", {"backend": "extern"}),
        _Variant("small", {"tile_shape": "(32, 16, 32)", "num_warps": 2}),
        _Variant("large, many warps", {"tile_shape": "(128, 64, 128)", "num_warps": 8}),
        _Variant("large", {"tile_shape": "(64, 128, 128)", "num_warps": 4}),
        _Variant("without a dimension", {"tile_shape": "(64, -1, 64)", "num_warps": 8}),
    ]
    assert choosing.make_precompile_fn(object(), given, name="mm") == "mm"
    assert began == ["large", "large, many warps", "small", "without a dimension", "no kernel"]


def test_variants_of_kernels_say_their_tiles() -> None:
    selecting = importlib.import_module("torch._inductor.select_algorithm")
    generate, info = inspect.getsource(selecting.TritonTemplate.generate), selecting.TritonTemplateCaller.info_dict
    assert '"tile_shape": str(' in generate
    assert '"num_warps": num_warps' in generate
    assert "self.log_info" in inspect.getsource(info)
