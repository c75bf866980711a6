"""What a pod has imported, or has run, does not keep it from what others had compiled."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from tests.lean import LEAN

# Some set variables, some register operators, some import compilers.
LIBRARIES = (
    "opt_einsum", "einops", "triton", "torchvision", "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def test_keys_are_the_same_whatever_was_imported_before() -> None:
    modules = [module for module in LIBRARIES if is_installed(module)]
    assert "transformers.models.llama.modeling_llama" in modules
    done = subprocess.run(
        [sys.executable, "-W", "ignore", LEAN, str(Path(__file__).parent / "imports.py"), *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    for after, facts in seen.items():
        assert facts == seen["nothing"], f"after the import of {after}"
