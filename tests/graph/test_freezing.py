"""The setting freezing: weights become frozen inputs, and what it has no effect on is sent as if nobody had set it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.freezing import frozen_inputs, mark_frozen
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


def _frozen(function: Callable[..., Any], *, options: dict[str, object] | None = None) -> list[Job]:
    with torch.no_grad(), INDUCTOR.patch(freezing=True):
        return _jobs(function, options=options)


def test_weights_are_frozen_inputs_and_the_key_is_another_one() -> None:
    layer = torch.nn.Linear(8, 4)
    (job,) = _frozen(layer)
    assert not job.graph.constants
    assert [given.is_parameter for given in job.inputs] == [given.is_frozen for given in job.inputs]
    assert frozen_inputs(job) == [1, 2]
    plain = Job()
    plain.CopyFrom(job)
    for given in plain.inputs:
        given.is_frozen = False
    assert key_of(plain).text != key_of(job).text


def test_weights_of_graphs_that_were_captured_by_other_means_are_frozen_for_an_option_too() -> None:
    graph = torch.fx.Graph()
    taken = graph.placeholder("x")
    graph.output((graph.call_function(torch.mm, (taken, graph.get_attr("weight"))),))
    program = torch.fx.GraphModule(torch.nn.ParameterDict({"weight": torch.ones(8, 4)}), graph)
    with torch.no_grad():
        job = TorchRuntime().encode(program, [torch.ones(2, 8)], options={"freezing": True}).job
    assert frozen_inputs(job) == [1]


def test_where_kernels_would_be_tuned_on_weights_the_farm_is_not_asked() -> None:
    with pytest.raises(Exception, match="max_autotune") as caught:
        _frozen(torch.nn.Linear(8, 4), options={"max_autotune": True})
    assert "Bypass" in str(caught.value)


def test_quantized_weights_are_frozen_before_they_are_taken_apart_and_not_sent() -> None:
    with pytest.raises(Exception, match="Bypass"):
        _frozen(linear(scaled(4, 8)))


def test_a_worker_refuses_to_freeze_what_cannot_be() -> None:
    (job,) = _frozen(torch.nn.Linear(8, 4))
    for change in (
        lambda job: setattr(job.ambient, "grad_enabled", True),
        lambda job: job.inputs[1].integer.SetInParent(),
        lambda job: setattr(job.inputs[1].tensor.device, "type", "cuda"),
        lambda job: job.inputs[1].tensor.shape[0].expression.SetInParent(),
    ):
        changed = Job()
        changed.CopyFrom(job)
        change(changed)
        with pytest.raises(InvalidRequest, match="is frozen"):
            frozen_inputs(changed)


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
    assert _frozen(torch.sin) == expected


def test_for_weights_on_a_gpu_the_farm_is_not_asked() -> None:
    (job,) = _frozen(torch.nn.Linear(8, 4))
    job.inputs[0].tensor.device.type = "cuda"
    with pytest.raises(Bypass, match="GPU"):
        mark_frozen(job, [1, 2])
