"""Where the source of users' Triton kernels lies while a process needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from compilefarm.graph.admission import folder_for
from compilefarm.v1.graph_pb2 import TritonFunction, TritonKernel
one, other = (TritonKernel(functions=[TritonFunction(name=name)]) for name in ("one", "other"))
folders = {folder_for([one]) for _ in range(5)} | {folder_for([other])}
process = os.fork()
if process == 0:
    folder_for([one])
    sys.exit()
os.waitpid(process, 0)
print(len(folders), all(folder.exists() for folder in folders))
"""


def test_the_same_kernels_share_a_folder_that_goes_with_its_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["2", "True"]
    assert list(tmp_path.glob("compilefarm-*")) == []
