"""Starts ranks that communicate, each of them a pod of one farm."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lean import LEAN

_POD = Path(__file__).parent / "rank.py"
_SECONDS = 400
# Of a rank: what became of the graphs of each program.
Graphs = Mapping[str, Sequence[Mapping[str, Any]]]


def run_ranks(address: str, folder: Path, programs: Sequence[str], *, size: int, backend: str = "gloo") -> list[Graphs]:
    """What became of the graphs of each program, for each rank.

    Args:
        address: of the farm.
        folder: for caches of the ranks.
        programs: names of those in `rank.py`.
        size: how many ranks there are.
        backend: of torch.distributed; with "nccl" each has a GPU.

    Raises:
        AssertionError: a rank failed, and what it printed.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, LEAN, str(_POD), *programs, "--backend", backend],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in _variables(address, folder, size=size)
    ]
    outputs = [rank.communicate(timeout=_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(errors for _, errors in outputs)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def _variables(address: str, folder: Path, *, size: int) -> list[dict[str, str]]:
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    shared |= {"COMPILEFARM_ADDRESS": address, "OMP_NUM_THREADS": "1"}
    # As torchrun names them; transformers takes the GPU of a rank from the second.
    own = (
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache{rank}")}
        for rank in range(size)
    )
    return [{**os.environ, **shared, **each} for each in own]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
