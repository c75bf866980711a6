"""Programs with tensor subclasses through the real farm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.client import Farm, stats
from compilefarm.client.records import GraphRecord
from tests.lean import LEAN
from tests.settings import restoring_torchao_settings

from .serving import ServedFarm, bare_environment

pytestmark = pytest.mark.compiles

POD = Path(__file__).with_name("subclass_pod.py")


def test_pods_without_a_compiler_train(farm: ServedFarm, tmp_path: Path) -> None:
    environment = bare_environment(tmp_path, farm.address)
    trust = {"COMPILEFARM_TRUSTED_KEYS": farm.status()["trust"]["public_key"]}
    for outcome in ("compiled", "hit"):
        pod = subprocess.run(
            [sys.executable, LEAN, str(POD)], env=environment | trust, capture_output=True, text=True, check=False
        )
        assert pod.returncode == 0, pod.stderr
        seen = json.loads(pod.stdout.splitlines()[-1])
        assert seen["outcomes"] == [outcome, outcome], pod.stderr
        assert seen["difference"] < 1e-4
        assert seen["compiler"] == []


def test_jagged_tensors_are_served_for_all_lengths(farm: ServedFarm) -> None:
    def nested(*lengths: int) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.randn(length, 8) for length in lengths], layout=torch.jagged)

    def pod() -> list[GraphRecord]:
        torch.compiler.reset()
        before, compiled = len(stats()), torch.compile(model, backend=Farm(farm.address).backend)
        with torch.no_grad():
            for given in (nested(3, 5, 2), nested(1, 7, 4)):
                found, expected = compiled(given), model(given)
                torch.testing.assert_close(found.values(), expected.values())
                # What is made of it has the lengths of the input.
                torch.testing.assert_close((found + given).values(), (expected + given).values())
        return stats()[before:]

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    first, second = pod(), pod()
    assert {each.outcome for each in first} == {"compiled"}
    assert [each.outcome for each in second] == ["hit"] * len(first)


def test_quantized_weights_are_served_and_prewarmed(farm: ServedFarm) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).eval()
    with restoring_torchao_settings():
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    x, client = torch.randn(4, 32), Farm(farm.address)

    def workload(backend: Any) -> torch.Tensor:
        torch.compiler.reset()
        with torch.no_grad():
            result: torch.Tensor = torch.compile(model, backend=backend)(x)
        return result

    assert [each.outcome for each in client.prewarm(workload).served] == ["compiled"]
    before = len(stats())
    with torch.no_grad():
        torch.testing.assert_close(workload(client.backend), model(x), rtol=1e-4, atol=1e-4)
    assert [each.outcome for each in stats()[before:]] == ["hit"]
