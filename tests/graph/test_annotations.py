"""What is noted beside a node reaches the compiler of a worker."""

from __future__ import annotations

import pytest
import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.decode import decode_job
from compilefarm.graph.testing import capture
from compilefarm.v1.graph_pb2 import NamedValue, Value


def square(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).sin()


def test_notes_arrive() -> None:
    graph = capture(square, torch.rand(4, 4))
    node = next(iter(graph.graph_module.graph.find_nodes(op="call_method", target="sin")))
    node.meta["custom"] = {"fallback_to_eager": True, "_region_activation_memory_budget": 0.25}
    decoded = decode_job(graph.encode().job, blobs={})
    (there,) = decoded.graph_module.graph.find_nodes(op="call_method", target="sin")
    assert there.meta["custom"] == node.meta["custom"]


@pytest.mark.parametrize(
    "note",
    [
        NamedValue(name="stack_trace", value=Value(text="x")),
        NamedValue(name="custom.stream", value=Value(integer=1)),
        NamedValue(name="custom.fallback_to_eager", value=Value(text="x")),
    ],
    ids=lambda note: note.name,
)
def test_notes_that_a_request_may_not_make(note: NamedValue) -> None:
    job = capture(square, torch.rand(4, 4)).encode().job
    job.graph.nodes[1].annotations.append(note)
    with pytest.raises(InvalidRequest, match="note"):
        decode_job(job, blobs={})
