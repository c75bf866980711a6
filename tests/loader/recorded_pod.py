"""A pod that records a program: `python -m tests.loader.recorded_pod PROGRAM`. Says which modules of the compiler it
has imported by then, and whether the compiler can be had after that."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch

from compilefarm.loader.programs import deserialize_program, preload_loader
from compilefarm.torch_internals.compiler_stub import COMPILER, without_compiler

from .graph_stand_ins import standing_in


def main() -> None:
    reasons: list[Exception] = []
    preload_loader(with_triton=False)
    with without_compiler():
        importlib.import_module("torch._inductor.cudagraph_trees")
    with standing_in():
        program = deserialize_program(
            Path(sys.argv[1]).read_bytes(),
            recording={"triton.cudagraphs": True, "graph_partition": False},
            on_unrecorded=reasons.append,
        )
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x, weight = torch.rand(3, 3), torch.rand(3, 3)
            torch.testing.assert_close(program(x, weight), [x @ weight])
        manager = importlib.import_module("torch._inductor.cudagraph_trees").get_container(0).tree_manager
        graphs = sum(map(len, manager.roots.values()))
    unneeded = (COMPILER, "torch._inductor.lowering", "torch._inductor.debug", "networkx")
    imported = [name for name in unneeded if name in sys.modules]
    compiled = torch.compile(torch.matmul)(torch.ones(2, 2), torch.ones(2, 2)).tolist()
    print(graphs, reasons, imported, compiled)


if __name__ == "__main__":
    main()
