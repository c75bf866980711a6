"""Artifacts in torch's own forms: a process without Compilefarm loads them, and computes what eager does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats
from compilefarm.client.compiled_graph import CompiledGraph
from compilefarm.core.errors import NotStored, UntrustedArtifact, UnusableFolder
from compilefarm.core.signatures import new_signing_key
from compilefarm.graph.bypass import Bypass
from tests.lean import LEAN

from .serving import ServedFarm, run

pytestmark = pytest.mark.compiles
POD = Path(__file__).with_name("plain_pod.py")


def scores(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.nn.functional.gelu(x @ weight) + 1
    return found.softmax(-1), found.sum(0)


def inputs() -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(7)
    return [
        torch.randn(16, 32, generator=numbers),
        torch.randn(32, 24, generator=numbers).requires_grad_(),
    ]


def expected() -> list[torch.Tensor]:
    """What eager computes, and the gradient."""
    given = inputs()
    returned = scores(*given)
    torch.autograd.backward([value.sum() for value in returned])
    assert given[1].grad is not None
    return [*(value.detach() for value in returned), given[1].grad]


def plain(path: Path, *, folder: Path) -> Any:
    """What a process without Compilefarm and without a C++ compiler computes."""
    folder.mkdir()
    torch.save(inputs(), folder / "inputs")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COMPILEFARM")}
    environ |= {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "caches"),
        # Our entry point is installed here.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "CXX": "none",
    }
    command = [sys.executable, LEAN, str(POD), str(path), "binary", str(folder / "inputs"), str(folder / "results")]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return torch.load(folder / "results")


@pytest.fixture(scope="module")
def program(farm: ServedFarm) -> CompiledGraph:
    program = Farm(farm.address, on_failure="error").compile(torch.fx.symbolic_trace(scores), inputs())
    torch.testing.assert_close(program(*inputs()), scores(*inputs()))
    return program


@pytest.fixture(scope="module")
def key(program: CompiledGraph) -> str:
    return stats()[-1].key


def test_a_binary_brings_its_libraries_and_needs_no_compiler(program: CompiledGraph, tmp_path: Path) -> None:
    program.save(path=tmp_path / "program")
    results = plain(tmp_path / "program", folder=tmp_path / "pod")
    torch.testing.assert_close(results, expected())
    torch.testing.assert_close(list(CompiledGraph.load(path=tmp_path / "program")(*inputs())), list(scores(*inputs())))


def test_an_unpacked_artifact_is_read_by_people(farm: ServedFarm, key: str, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    ran = run("inspect", key, "--unpacked", str(unpacked), "--address", farm.address)
    assert ran.returncode == 0, ran.stderr
    wrappers = [path.read_text() for path in unpacked.glob("*/*.py")]
    # Forward and backward as Inductor has written them. That torch loads such a folder, and compiles what is changed
    # there, is seen in tests/torch_internals/test_compiled_artifacts.py; C++ would take half a minute here.
    assert len(wrappers) == 2
    for text in wrappers:
        assert "async_compile.cpp_pybinding" in text
        assert "Topologically Sorted Source Nodes" in text
    assert [path.name for path in (unpacked / "aotautograd").iterdir()] == [key]


def test_what_is_not_there_not_trusted_or_in_the_way_is_told(farm: ServedFarm, key: str, tmp_path: Path) -> None:
    with pytest.raises(NotStored):
        Farm(farm.address).export("ab" * 32, tmp_path / "program")
    stranger = Farm(farm.address, trusted_keys=[new_signing_key().public.text])
    with pytest.raises(UntrustedArtifact):
        stranger.export(key, tmp_path / "program")
    assert not (tmp_path / "program").exists()
    (tmp_path / "notes").write_text("of somebody")
    with pytest.raises(UnusableFolder, match="not empty"):
        Farm(farm.address).export(key, tmp_path, format="unpacked")
    with pytest.raises(UnusableFolder, match="is a folder"):
        Farm(farm.address).export(key, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_graph_that_calls_modules_says_how_it_can_be_saved(tmp_path: Path) -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    program = Farm("127.0.0.1:1").compile(traced, [torch.ones(1, 2)])
    with pytest.raises(Bypass, match="export it with"):
        program.save(path=tmp_path / "program")
