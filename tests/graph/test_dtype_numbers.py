"""Dtypes that programs give as numbers are sent by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import Graph, GraphModule

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture, fixed_environment

aten = torch.ops.aten


@pytest.mark.parametrize(
    "make",
    [
        lambda x: aten.new_ones(x, [2, 3], dtype=6),
        lambda x: aten._to_copy.default(x, dtype=15),
        lambda x: aten.sum.dim_IntList(x, [0], dtype=7),
        lambda x: aten.zeros_like(x, dtype=11),
        lambda x: x.type(torch.ones(1).half().type()),
        lambda x: x.type(torch.DoubleTensor),
    ],
    ids=["packet", "conversion", "sum", "boolean", "text of a type", "type"],
)
def test_what_they_make_is_of_the_dtype(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    job = capture(make, torch.arange(4)).encode().job
    (result,) = decode_job(job, blobs={}).graph_module(torch.arange(4))
    torch.testing.assert_close(result, make(torch.arange(4)), rtol=0, atol=0)


def test_numbers_of_dtypes_that_no_graph_has_are_refused() -> None:
    graph = Graph()
    # torch.qint8
    graph.output((graph.call_function(aten.new_empty.default, (graph.placeholder("x"), [2]), {"dtype": 12}),))
    module = GraphModule(torch.nn.Module(), graph)
    with pytest.raises(Bypass, match="not 12"):
        encode_job(module, [torch.arange(4)], options={}, environment=fixed_environment)
