"""What a verifier finds wrong with an artifact. Programs that stand in for a loaded artifact do what a test wants."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.graph.testing import capture
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker import verify
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.decoding import Admitted

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def model(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    calls.add_(1)
    return (weight * x).sin()


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (weight * x).sin()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] * x, None


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], Verification]:
    """Verifies a program as if it were the artifact of `model`."""
    # The verifier takes compilers out of its process for good.
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, "")
    weight = torch.nn.Parameter(torch.rand(3, 4))
    encoded = capture(model, torch.zeros(2), weight, torch.rand(3, 4)).encode()

    def run(program: Program) -> Verification:
        monkeypatch.setattr(verify, "load_artifact", lambda *_, **__: lambda *inputs: [program(*inputs)])
        return verify.verify_task(VerifyTask(job=encoded.job), admitted=Admitted())

    return run


def test_what_does_the_same_passes_with_its_figures(check: Callable[[Program], Verification]) -> None:
    verification = check(model)
    assert verification.largest_difference == 0
    assert verification.not_compared == ""
    assert verification.call_seconds > 0


def _wrong_output(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls, weight, x) * 1.1


def _wrong_gradient(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    calls.add_(1)
    result: torch.Tensor = _WrongBackward.apply(weight, x)
    return result


def _without_backward(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls, weight, x).detach()


def _without_the_write(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return model(calls.clone(), weight, x)


def _with_a_program(calls: torch.Tensor, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    subprocess.run(["/bin/true"], check=True)
    return model(calls, weight, x)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (_wrong_output, "output 0 differs from eager"),
        (_wrong_gradient, "gradient of input 1 differs from eager"),
        (_without_backward, "gradient of input 1"),
        (_without_the_write, "input 0 afterwards differs from eager"),
        (_with_a_program, "started programs: 1 x /bin/true"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[Program], Verification], program: Program, reason: str) -> None:
    with pytest.raises(VerificationFailed, match=reason):
        check(program)


def _ranked(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sort().values


def test_the_order_of_what_a_graph_sorts_is_free_and_its_values_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, "")
    encoded = capture(_ranked, torch.rand(50)).encode()

    def run(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
        monkeypatch.setattr(verify, "load_artifact", lambda *_, **__: lambda *inputs: [program(*inputs)])
        verify.verify_task(VerifyTask(job=encoded.job), admitted=Admitted())

    run(lambda x: _ranked(x).flip(0))
    with pytest.raises(VerificationFailed, match="output 0 differs"):
        run(lambda x: _ranked(x) * 1.1)
