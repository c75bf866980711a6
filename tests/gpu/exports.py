"""Programs for a GPU in torch's own forms: `python -m tests.gpu.exports`.

A farm compiles a graph, and a process without Compilefarm loads what was exported. Prints a line for each form; the
exit status is 1 if a result is not that of eager.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from compilefarm.client import Farm
from tests.farm import plain_pod
from tests.farm.serving import serve


def main() -> int:
    """Exports a program in both forms, and has each loaded."""
    with tempfile.TemporaryDirectory() as place, serve(Path(place), device="cuda") as served:
        inputs = [torch.randn(64, 256, device="cuda"), torch.randn(256, 128, device="cuda")]
        program = Farm(served.address, on_failure="error").compile(torch.fx.symbolic_trace(_scores), inputs)
        torch.save(inputs, Path(place, "inputs"))
        torch.testing.assert_close(list(program(*inputs)), list(_scores(*inputs)), rtol=2e-3, atol=2e-3)
        right = True
        for form in ("binary", "unpacked"):
            program.save(path=Path(place, form), format=form)
            right &= _look(form, Path(place), expected=list(_scores(*inputs)))
    return 0 if right else 1


def _scores(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.nn.functional.gelu(x @ weight) + 1
    return found.softmax(-1), found.sum(0)


def _look(form: str, folder: Path, *, expected: list[torch.Tensor]) -> bool:
    results, start = folder / f"results of {form}", time.monotonic()
    ran = subprocess.run(
        [sys.executable, plain_pod.__file__, str(folder / form), form, str(folder / "inputs"), str(results)],
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"caches of {form}"),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
        check=False,
        timeout=300,
    )
    loaded = torch.load(results) if ran.returncode == 0 else []
    off = [(a - b).abs().max().item() for a, b in zip(loaded, expected, strict=False)]
    right = len(loaded) == len(expected) and max(off) < 2e-3
    print(f"{'right' if right else 'WRONG'}: {form}: {time.monotonic() - start:.1f} s, differences {off}", flush=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
