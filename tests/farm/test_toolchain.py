"""What a farm found out and built once is not found out and built again for each graph."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compilefarm.serving.pools import cache_folder

from .serving import ServedFarm

# As a child of the farm begins a compile.
_COMPILE = """
import sys
from pathlib import Path
import torch
from compilefarm.builder.build_trials import replay_build_trials
from compilefarm.builder.headers import offer_headers
from compilefarm.builder.preloading import preload_compiler
from compilefarm.v1.child_pb2 import Toolchain

preload_compiler(with_triton=False)
folder = Path(sys.argv[1])
known = [Toolchain.FromString(path.read_bytes()) for path in folder.glob("toolchain-*")]
replay_build_trials({trial.program_digest: trial.works for each in known for trial in each.trials})
offer_headers(folder / "headers", {name for each in known for name in each.headers})
programs = []
hook = lambda event, given: programs.append([str(word) for word in given[1]]) if event == "subprocess.Popen" else None
sys.addaudithook(hook)
torch.compile(lambda x: x * 2)(torch.ones(8))
print(programs)
"""


@pytest.mark.compiles
def test_a_compile_tries_no_compiler_and_builds_no_headers(farm: ServedFarm, tmp_path: Path) -> None:
    assert farm.status()["workers"]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE, str(cache_folder())],
        env={**os.environ, "TMPDIR": str(tmp_path), "USER": "compilefarm", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    programs = ast.literal_eval(ended.stdout.splitlines()[-1])
    assert [program for program in programs if "c++-header" in program] == []
    # One that has no header runs the compiler for nothing but the library.
    built = [program for program in programs if any(word.endswith(".so") for word in program)]
    assert len(built) == 1
