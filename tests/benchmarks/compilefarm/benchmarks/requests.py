"""Requests of small graphs, for measuring a farm without pods."""

from __future__ import annotations

from compilefarm.client.recording_backend import FakeTensorRuntime, RecordingBackend
from compilefarm.core.recordings import Recording


def trace_requests(count: int) -> Recording:
    """As many different requests, each for the same layers and another batch; Dynamo allows eight of a function."""
    import torch

    from compilefarm.benchmarks.cases import perceptron
    from compilefarm.graph.tracing import faking

    capture = RecordingBackend(FakeTensorRuntime())
    with faking(), torch.no_grad():
        compiled = torch.compile(perceptron().eval(), backend=capture.backend, dynamic=False)
        for number in range(count):
            compiled(torch.empty(8 * (number + 1), 256))
    return capture.recording()
