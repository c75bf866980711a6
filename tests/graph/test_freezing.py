"""The setting freezing: what it has no effect on is sent as if nobody had set it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.settings import INDUCTOR
from compilefarm.v1.job_pb2 import Job

from .test_plain_graphs import linear, scaled


def _jobs(function: Callable[..., Any], *, options: dict[str, object] | None = None) -> list[Job]:
    """What Dynamo captures, as it would be sent."""
    jobs, runtime = [], TorchRuntime()

    def backend(graph_module: torch.fx.GraphModule, inputs: Any) -> Any:
        assert not runtime.needs_plain_graphs(graph_module, inputs)
        jobs.append(runtime.encode(graph_module, inputs, options=options or {}).job)
        return graph_module.forward

    torch.compiler.reset()
    torch.compile(function, backend=backend)(torch.ones(2, 8))
    return jobs


def test_parameters_that_would_be_frozen_are_no_request() -> None:
    with (
        torch.no_grad(),
        INDUCTOR.patch(freezing=True),
        pytest.raises(Exception, match="part of its program") as caught,
    ):
        _jobs(torch.nn.Linear(8, 4))
    assert "Bypass" in str(caught.value)


def test_quantized_parameters_are_frozen_before_they_are_taken_apart() -> None:
    with torch.no_grad(), INDUCTOR.patch(freezing=True), pytest.raises(Exception, match="part of its program"):
        _jobs(linear(scaled(4, 8)))


@pytest.mark.parametrize("function", [torch.nn.Linear(8, 4), torch.sin], ids=["parameters", "none"])
def test_graphs_of_which_nothing_would_be_frozen_are_sent_as_ever(function: Callable[..., Any]) -> None:
    # Dynamo takes what an option says of freezing for nothing.
    with torch.no_grad():
        assert _jobs(function, options={"freezing": True}) == _jobs(function)
    expected = _jobs(function)
    with INDUCTOR.patch(freezing=True):
        assert _jobs(function) == expected


def test_a_function_without_parameters_is_sent_as_ever() -> None:
    with torch.no_grad():
        expected = _jobs(torch.sin)
        with INDUCTOR.patch(freezing=True):
            assert _jobs(torch.sin) == expected


def test_graphs_captured_by_other_means_hold_their_parameters() -> None:
    """Of these, Inductor freezes parameters for an option, too."""
    program = torch.export.export(torch.nn.Linear(8, 4), (torch.ones(2, 8),)).module()
    with torch.no_grad(), pytest.raises(Bypass) as caught:
        TorchRuntime().encode(program, [torch.ones(2, 8)], options={"freezing": True})
    assert caught.value.reason == "freezing"
