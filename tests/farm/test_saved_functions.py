"""Functions that are compiled ahead of time, saved, and loaded by pods without Dynamo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compilefarm.client import Farm, stats
from compilefarm.graph.bypass import Bypass
from tests.lean import LEAN

from .models import MODELS
from .serving import ServedFarm, bare_environment

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def ahead() -> Iterator[None]:
    """Torch 2.11 asks for this; later releases have it on."""
    with torch._dynamo.config.patch(enable_aot_compile=True):
        yield


def compile_ahead(function: Any, *inputs: torch.Tensor, farm: Farm) -> Any:
    # What makes identities of Python objects guards cannot be saved.
    filters = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    compiled = torch.compile(function, fullgraph=True, backend=farm.backend, options=filters)
    with torch.no_grad():
        return compiled.aot_compile((inputs, {}))


def save(model: nn.Module, path: Path, *inputs: torch.Tensor, farm: Farm) -> None:
    compile_ahead(model.forward, *inputs, farm=farm).save_compiled_function(str(path))


def test_a_pod_without_a_compiler_runs_saved_functions_and_no_dynamo(farm: ServedFarm, tmp_path: Path) -> None:
    names, saved = ("minilm", "llama"), tmp_path / "saved"
    saved.mkdir()
    for name in names:
        model, inputs = MODELS[name]()
        torch.compiler.reset()
        save(model, saved / f"{name}.function", *inputs, farm=Farm(farm.address))
    pod = subprocess.run(
        [sys.executable, LEAN, "-m", "tests.farm.saved_pod", str(saved)],
        cwd=Path(__file__).parent.parent.parent,
        env=bare_environment(tmp_path, farm.address),
        capture_output=True,
        text=True,
        check=False,
    )
    assert pod.returncode == 0, pod.stderr
    seen = json.loads(pod.stdout.splitlines()[-1])
    assert (seen["started"], seen["traced"]) == ([], 0)
    assert {each["model"]: each["outcome"] for each in seen["models"]} == dict.fromkeys(names, "hit"), pod.stderr
    assert max(each["difference"] for each in seen["models"]) < 1e-4


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2


def test_without_a_farm_a_saved_function_is_compiled_where_it_is_loaded(farm: ServedFarm, tmp_path: Path) -> None:
    model, x, path = Scaled(), torch.randn(3, 5), tmp_path / "function"
    save(model, path, x, farm=Farm(farm.address))
    with path.open("rb") as file, torch.no_grad():
        function = Farm("no-such-host.invalid:1").load_compiled_function(file)
        torch.testing.assert_close(function(model, x), model(x))
    assert (stats()[-1].outcome, stats()[-1].reason) == ("fallback", "unreachable")


def test_what_cannot_be_asked_for_again_is_not_saved(farm: ServedFarm, tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = compile_ahead(Scaled().forward, x, farm=Farm(farm.address))
    with pytest.raises(Bypass, match="sizes that differ from call to call cannot be saved"):
        compiled.save_compiled_function(str(tmp_path / "function"))
