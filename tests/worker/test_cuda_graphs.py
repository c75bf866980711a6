"""Checks of programs that are recorded as CUDA graphs. What stands in for one does to memory what a graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.graph.admission import Admitted
from compilefarm.graph.testing import capture
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker import verify
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.cuda_graphs import CudaGraphProgram

Check = Callable[[Callable[..., Any]], Verification]


def model(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (weight * x).sin()


class _Recorded:
    """As torch runs a program: once by itself; then what it read and wrote, at the same places."""

    def __init__(self, *, reads_x: bool = True) -> None:
        self.calls = 0
        self._reads_x = reads_x
        self._static: torch.Tensor | None = None
        self._copied = torch.empty(0)
        self._output = torch.empty(0)

    def __call__(self, weight: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        self.calls += 1
        if self.calls == 1:
            return [model(weight, x)]
        if self._static is None:
            self._static, self._copied, self._output = weight, x.clone(), torch.empty_like(x)
        elif self._reads_x:
            self._copied.copy_(x)
        self._output.copy_(model(self._static, self._copied))
        return [self._output]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Verifies a program as if it were the artifact of `model`, to be recorded, with a static weight."""
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, "")
    encoded = capture(model, torch.rand(3, 4), torch.rand(3, 4)).encode()
    encoded.job.options.inductor.add(name="triton.cudagraphs").value.boolean = True
    encoded.job.inputs[0].is_static = True

    def run(program: Callable[..., Any]) -> Verification:
        monkeypatch.setattr(verify, "load_artifact", lambda *_, recording, **__: program if recording else None)
        return verify.verify_task(VerifyTask(job=encoded.job), admitted=Admitted())

    return run


def test_a_program_is_called_warm_recorded_and_replayed(check: Check) -> None:
    program = _Recorded()
    assert check(program).largest_difference == 0
    assert program.calls >= 3


def test_a_replay_that_reads_no_new_inputs_is_found(check: Check) -> None:
    with pytest.raises(VerificationFailed, match="output 0 differs from eager"):
        check(_Recorded(reads_x=False))


def test_static_inputs_stay_where_they_are_and_results_do_not_change_with_the_next_call() -> None:
    program = CudaGraphProgram(_Recorded(), static_inputs=[0])
    weights = [torch.full((2,), float(number)) for number in range(4)]
    x = torch.ones(2)
    results = [program(*program.place([weight, x]))[0] for weight in weights]
    for weight, result in zip((torch.full((2,), float(number)) for number in range(4)), results, strict=True):
        torch.testing.assert_close(result, model(weight, x))
