"""For tests: graphs as Dynamo hands them to a backend, and jobs made of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.v1.environment_pb2 import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraph:
    """What a backend was called with."""

    graph_module: GraphModule
    example_inputs: Sequence[Any]

    def encode(self, *, options: Mapping[str, object] | None = None) -> EncodedJob:
        """The graph as a job for a made-up environment, in the state of this thread."""
        return encode_job(self.graph_module, self.example_inputs, options=options or {}, environment=fixed_environment)


def fixed_environment(_: EnvironmentNeeds) -> Environment:
    """An environment that is the same wherever a test runs."""
    return Environment(torch="0.0", python_abi="test")


def capture(model: Callable[..., Any], *args: Any, **options: Any) -> CapturedGraph:
    """The one graph that Dynamo makes of a call; `options` go to torch.compile.

    Raises:
        AssertionError: there was another number of graphs.
    """
    graphs = capture_all(model, *args, **options)
    assert len(graphs) == 1, f"{len(graphs)} graphs were captured"
    return graphs[0]


class _Traced(Exception):
    """Ends a call once its graph is there."""


def trace(model: Callable[..., Any], *args: Any, **options: Any) -> CapturedGraph:
    """As `capture`, for a graph that cannot be run here: the call ends when Dynamo has made the first."""
    captured: list[CapturedGraph] = []

    def backend(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        captured.append(CapturedGraph(graph_module=graph_module, example_inputs=example_inputs))
        return end

    def end(*_: Any) -> Any:
        # Not within the backend: Dynamo takes a graph apart that no backend has compiled.
        raise _Traced

    torch.compiler.reset()
    with contextlib.suppress(_Traced):
        torch.compile(model, backend=backend, **options)(*args)
    return captured[0]


def capture_all(model: Callable[..., Any], *args: Any, **options: Any) -> list[CapturedGraph]:
    """All graphs that Dynamo makes of a call."""
    captured: list[CapturedGraph] = []

    def backend(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        captured.append(CapturedGraph(graph_module=graph_module, example_inputs=example_inputs))
        forward: Callable[..., Any] = graph_module.forward
        return forward

    # What was traced before would make sizes symbolic.
    torch.compiler.reset()
    torch.compile(model, backend=backend, **options)(*args)
    return captured
