"""Several GPUs, one artifact for all ranks: `python -m tests.gpu.ranks [--ranks N]`, in the root of the checkout.

Starts a farm, which makes and checks each program on one GPU, with groups of which there is one process. Then as many
ranks as there are GPUs, each a pod, run programs that communicate through NCCL: every collective, gradients, a split
MLP, DDP, FSDP2 and tensor parallelism, that of transformers as well. Results have to be those of eager in the same
ranks, ranks have to share each program, and each has to be compiled once. Prints a line for each program; the exit
status is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.farm.ranks import Graphs, run_ranks
from tests.farm.serving import serve

_PROGRAMS = (
    *("every_collective", "gradients", "split_mlp", "data_parallel", "sharded", "tensor_parallel"),
    "split_transformer",
)
_SERVED = frozenset({"compiled", "joined", "hit"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="how many; one for each GPU")
    size = parser.parse_args().ranks
    if not 2 <= size <= torch.cuda.device_count():
        parser.error(f"{size} ranks need as many GPUs, and this machine has {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with serve(folder, device="cuda") as farm:
            ranks = run_ranks(farm.address, folder, _PROGRAMS, size=size, backend="nccl")
            compiled = farm.count("compiled")
    problems = [problem for name in _PROGRAMS if (problem := _report(name, ranks))]
    keys = {graph["key"] for rank in ranks for graphs in rank.values() for graph in graphs}
    print(f"{compiled} compiles for {len(keys)} keys and {size} ranks")
    return 1 if problems or compiled != len(keys) else 0


def _report(name: str, ranks: Sequence[Graphs]) -> str:
    graphs = [graph for rank in ranks for graph in rank[name]]
    refused = [graph["message"] for graph in graphs if graph["outcome"] not in _SERVED]
    keys = {tuple(graph["key"] for graph in rank[name]) for rank in ranks}
    problem = refused[0] if refused else "" if len(keys) == 1 else f"{len(keys)} programs for {len(ranks)} ranks"
    print(f"{name}: {len(ranks[0][name])} graphs, {problem or 'right, one program for all'}")
    return problem


if __name__ == "__main__":
    sys.exit(main())
