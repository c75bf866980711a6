"""Real models through the real farm."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from compilefarm.client import Farm, stats
from compilefarm.client.records import GraphRecord

from .models import DYNAMIC, MODELS, mlp
from .serving import ServedFarm, bare_environment, run

pytestmark = pytest.mark.compiles


def records_of(work: Any) -> list[GraphRecord]:
    """The records of the graphs that `work` hands to a farm."""
    before = len(stats())
    work()
    return stats()[before:]


def compiled_call(farm: ServedFarm, name: str) -> GraphRecord:
    """What became of the graph of a model, which computes the same as uncompiled."""
    model, inputs = MODELS[name]()

    def use() -> None:
        torch.compiler.reset()
        compiled = torch.compile(
            model, backend=Farm(farm.address).backend, fullgraph=True, dynamic=name in DYNAMIC or None
        )
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)

    with torch.no_grad():
        (record,) = records_of(use)
    return record


@pytest.fixture(scope="module")
def firsts(farm: ServedFarm) -> dict[str, GraphRecord]:
    """What became of the graph of each model when the farm was asked for it first."""
    return {name: compiled_call(farm, name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_compiled_once_and_then_found(farm: ServedFarm, firsts: dict[str, GraphRecord], name: str) -> None:
    first, second = firsts[name], compiled_call(farm, name)
    assert (first.outcome, second.outcome) == ("compiled", "hit")
    assert first.key == second.key
    assert second.bytes_fetched > 0


@pytest.mark.usefixtures("firsts")
def test_a_pod_without_a_compiler_starts_nothing_and_leaves_nothing(farm: ServedFarm, tmp_path: Path) -> None:
    pod = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bare_pod.py"))],
        env=bare_environment(tmp_path, farm.address)
        | {"COMPILEFARM_TRUSTED_KEYS": farm.status()["trust"]["public_key"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert pod.returncode == 0, pod.stderr
    seen = json.loads(pod.stdout.splitlines()[-1])
    assert seen["started"] == []
    assert [(each["model"], each["outcomes"]) for each in seen["models"]] == [(name, ["hit"]) for name in MODELS], (
        pod.stderr
    )
    assert max(each["difference"] for each in seen["models"]) < 1e-4
    # The loader is all that it needs.
    portions = {"autoload", "client", "core", "graph", "loader", "torch_internals", "v1", "warming"}
    assert {name.split(".")[1] for name in seen["imported"]} == portions
    # Libraries were in files while they were loaded.
    assert list(tmp_path.glob("compilefarm*")) == []


def test_sizes_beyond_a_guard_get_another_variant_and_both_serve(farm: ServedFarm) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        # Inductor splits long reductions and guards on it: rows <= 4096.
        return x.sum(0)

    compiled_before = farm.count("compiled")

    def pod(*rows: int) -> list[GraphRecord]:
        def work() -> None:
            torch.compiler.reset()
            compiled = torch.compile(total, backend=Farm(farm.address).backend, dynamic=True)
            for count in rows:
                x = torch.ones(count, 48)
                torch.testing.assert_close(compiled(x), total(x))

        return records_of(work)

    small, *large = pod(8, 4096, 4097, 6000, 9)
    assert [record.outcome for record in (small, *large)] == ["compiled", "compiled"]
    again = pod(5000, 7, 4096, 4097)
    assert [record.outcome for record in again] == ["hit", "hit"]
    assert len({record.key for record in (small, *large, *again)}) == 1
    assert farm.count("compiled") == compiled_before + 2


def test_twenty_threads_lead_to_one_compile(farm: ServedFarm) -> None:
    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ x) * 3 + 1

    graph, example = fx.symbolic_trace(Program()), torch.randn(7, 7)
    client = Farm(farm.address)
    compiled_before = farm.count("compiled")

    def ask(_: int) -> torch.Tensor:
        result: torch.Tensor = client.compile(graph, [example])(example)
        return result

    before = len(stats())
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        results = list(threads.map(ask, range(20)))
    outcomes = [record.outcome for record in stats()[before:]]
    assert farm.count("compiled") == compiled_before + 1
    assert outcomes.count("compiled") == 1
    assert set(outcomes) <= {"compiled", "joined", "hit"}
    for result in results:
        torch.testing.assert_close(result, Program()(example), rtol=1e-4, atol=1e-4)


def test_options_reach_the_worker(farm: ServedFarm) -> None:
    model, inputs = mlp(width=28)  # compiled for test_artifacts, too

    def use(options: dict[str, Any] | None) -> dict[str, Any]:
        def work() -> None:
            torch.compiler.reset()
            with torch.no_grad():
                torch.compile(model, backend=Farm(farm.address).backend, options=options)(*inputs)

        (record,) = records_of(work)
        return _inspect(farm, record.key)

    plain, scalar = use(None), use({"cpp.simdlen": 0})
    parts = zip(plain["key_parts"], scalar["key_parts"], strict=True)
    assert [ours["name"] for ours, other in parts if ours != other] == ["options"]
    # Without vector instructions the worker writes, and builds, other C++.
    sources = [{library["source_digest"] for library in manifest["libraries"]} for manifest in (plain, scalar)]
    assert sources[0].isdisjoint(sources[1])


def test_a_mode_is_its_options(farm: ServedFarm) -> None:
    model, inputs = mlp(width=24)

    def key_of_miss(**settings: Any) -> str:
        torch.compiler.reset()
        compiled = torch.compile(model, backend=Farm(farm.address, on_miss="error").backend, **settings)

        def ask() -> None:
            with torch.no_grad(), pytest.raises(Exception, match="nothing is stored under"):
                compiled(*inputs)

        (record,) = records_of(ask)
        return record.key

    mode = "max-autotune-no-cudagraphs"
    assert key_of_miss(mode=mode) == key_of_miss(options=torch._inductor.list_mode_options(mode))


def _inspect(farm: ServedFarm, key: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(farm.ask("inspect", key, "--json"))["manifest"]
    return manifest


def test_status_and_inspect_say_it_in_words(farm: ServedFarm) -> None:
    model, inputs = mlp()
    with torch.no_grad():
        (record,) = records_of(lambda: torch.compile(model, backend=Farm(farm.address).backend)(*inputs))
    status = farm.ask("status")
    assert "cpu-0" in status
    assert "idle" in status
    assert "artifacts" in status
    said = farm.ask("inspect", record.key[:24])
    for words in (record.key, "options", "compiling", "0 programs started", "none: every call"):
        assert words in said


def test_inspect_of_nothing_names_the_key(farm: ServedFarm) -> None:
    result = run("inspect", "0123456789abcdef", "--address", farm.address)
    assert result.returncode == 1
    assert "0123456789abcdef" in result.stderr
