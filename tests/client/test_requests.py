"""Requests saved to files: what a farm would be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from compilefarm.client import Farm, save_request
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FarmServicer, serving
from compilefarm.core.errors import NotStored, UnusableRequestFile
from compilefarm.core.keys import key_of
from compilefarm.core.requests import read_request
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job


@pytest.fixture
def farm() -> Iterator[Farm]:
    """A farm that has nothing and compiles nothing, asked by the real torch."""
    # Of a function that it has seen with other sizes Dynamo makes sizes inputs.
    torch.compiler.reset()
    with serving(FarmServicer()) as address:
        farm = Farm(address, on_miss="error", dependencies=Dependencies(ledger=Ledger()))
        yield farm
        farm.close()
    torch.compiler.reset()


def _asked_key(ask: Callable[[], object]) -> str:
    with pytest.raises(NotStored) as caught:
        ask()
    return str(caught.value).split()[4].rstrip(":")


class Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.arange(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + self.shift


@pytest.mark.parametrize("options", [{}, {"max-autotune": True}], ids=["plain", "options"])
def test_a_graph_of_dynamo_is_saved_as_it_would_be_sent(farm: Farm, tmp_path: Path, options: dict[str, Any]) -> None:
    path, keys = tmp_path / "graph.cfreq", []

    def backend(graph_module: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        save_request(graph_module, example_inputs, path, mode="max-autotune-no-cudagraphs", options=options)
        mode = "max-autotune-no-cudagraphs"
        keys.append(_asked_key(lambda: farm.backend(graph_module, example_inputs, mode=mode, options=options)))
        return graph_module.forward

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    torch.compile(model, backend=backend)(torch.ones(2, 4))
    request = read_request(path)
    assert [key_of(request.job).text] == keys
    with apply_ambient(request.job.ambient):
        decoded = decode_job(request.job, blobs=request.blobs)
    outputs = decoded.graph_module(*(torch.ones(given.shape) for given in decoded.inputs))
    assert [output.shape for output in outputs] == [(2, 3)]


def test_a_graph_with_one_result_and_a_tensor_that_others_may_change(farm: Farm, tmp_path: Path) -> None:
    path, graph_module, inputs = tmp_path / "graph.cfreq", fx.symbolic_trace(Shifted()), [torch.ones(2, 3)]
    save_request(graph_module, inputs, str(path))
    request = read_request(path)
    # It is passed at each call, and nothing is said of its elements.
    assert request.blobs == {}
    with apply_ambient(request.job.ambient):
        decoded = decode_job(request.job, blobs=request.blobs)
    torch.testing.assert_close(decoded.graph_module(*inputs, torch.arange(3)), (Shifted()(*inputs),))
    assert _asked_key(lambda: farm.compile(graph_module, inputs)) == key_of(request.job).text


def test_what_no_farm_would_be_asked_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "graph.cfreq"
    with pytest.raises(Bypass):
        save_request(fx.symbolic_trace(Shifted()), [torch.ones(2, 3).to_sparse()], path)
    assert not path.exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnusableRequestFile, match="cannot be written"):
        save_request(fx.symbolic_trace(Shifted()), [torch.ones(2, 3)], tmp_path / "none" / "graph.cfreq")
