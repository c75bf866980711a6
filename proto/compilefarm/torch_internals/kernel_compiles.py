"""The processes in which Inductor compiles Triton kernels (torch/_inductor/async_compile.py)."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from typing import Any

_ASYNC = "torch._inductor.async_compile"


def use_assembler_of_processes() -> None:
    """Has Triton assemble with the same ptxas here as in those processes."""
    # torch/_inductor/compile_worker/__main__.py calls it there.
    importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()


def look_at_gpu() -> None:
    """Looks at the GPU, as is done once before those processes are started."""
    importlib.import_module(_ASYNC).pre_fork_setup()


def start_processes() -> None:
    """Starts them and returns at once."""
    importlib.import_module(_ASYNC).AsyncCompile.use_process_pool()


def start_longest_first() -> None:
    """Has variants of a kernel, among which is chosen, begin to be compiled in the order of how long they take.

    The last of them to be ready decides when they are measured. A tile of 128 by 128 takes 5 s, one of 32 by 32 a tenth
    of that, and Inductor begins with the small ones (torch/_inductor/template_heuristics). To be called once.
    """
    choosing: Any = importlib.import_module("torch._inductor.select_algorithm").AlgorithmSelectorCache
    compile_ahead = choosing.make_precompile_fn

    def compile_longest_first(self: Any, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        longest_first = sorted(choices, key=_work_of_compiling, reverse=True)
        return compile_ahead(self, longest_first, *args, **kwargs)

    choosing.make_precompile_fn = compile_longest_first


def _work_of_compiling(choice: Any) -> float:
    """How long a variant takes to be compiled, beside others of its kernel: by the elements of its tile for each warp.

    Measured on an H100 with torch 2.11, products of matrices: 5.3 and 4.6 s with 262,144 of them, 1.6 to 2.2 s with
    131,072, 0.2 s with 8,192.
    """
    said = choice.info_dict()
    # -1 is a dimension that the kernel does not have. What is no kernel of Triton has no tile, and is not compiled.
    tile = [abs(int(size)) for size in re.findall(r"-?\d+", str(said.get("tile_shape", "")))]
    return math.prod(tile) / max(1, int(said.get("num_warps", 1))) if tile else 0.0
