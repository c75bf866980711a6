"""What a call of a program of a farm does besides computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from compilefarm.builder.programs import finish_program
from compilefarm.client.programs import Switch
from compilefarm.client.saving import SavableProgram
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.testing import capture
from compilefarm.loader.programs import deserialize_program
from tests.gpu.phases import python_calls
from tests.worker.inductor import compiled


class Product(torch.nn.Module):
    """What Inductor has no kernel of its own for, so that nothing is built."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ weight,)


@pytest.fixture(scope="module")
def content() -> bytes:
    encoded = capture(Product(), torch.rand(3, 3), torch.rand(3, 3)).encode()
    with apply_ambient(encoded.job.ambient):
        return finish_program(compiled(encoded)).content


def _calls(backend: str | Callable[..., Any]) -> list[str]:
    """The Python functions that a call of the model calls once it is compiled."""
    torch.compiler.reset()
    program, inputs = torch.compile(Product(), backend=backend), (torch.rand(3, 3), torch.rand(3, 3))
    for _ in range(2):
        torch.testing.assert_close(program(*inputs), (inputs[0] @ inputs[1],))
    return list(python_calls(lambda: program(*inputs)).elements())


@pytest.mark.parametrize("recording", [{}, {"triton.cudagraphs": False}], ids=["bare", "recorded"])
def test_a_call_takes_no_more_functions_of_python_than_one_of_inductor(
    content: bytes, recording: Mapping[str, object]
) -> None:
    program = deserialize_program(content, recording=recording, on_unrecorded=pytest.fail)
    ours = _calls(lambda *_: SavableProgram(Switch(program), encoded=None))
    theirs = _calls("inductor")
    assert 1 < len(ours) <= len(theirs), [*ours, "beside", *theirs]
