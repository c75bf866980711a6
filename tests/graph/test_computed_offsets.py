"""Offsets of bags of embeddings, and repeats, that a graph computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from compilefarm.graph.computed_offsets import with_safe_offsets
from tests.corpus.codec import CodecBackend

LENGTHS = torch.tensor([3, 0, 5, 4])
INDICES = torch.arange(12) * 7 % 20


def begin(lengths: torch.Tensor) -> torch.Tensor:
    return lengths.cumsum(0) - lengths


def ends(lengths: torch.Tensor) -> torch.Tensor:
    return F.pad(lengths.cumsum(0), (1, 0))


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sums": lambda i, w, n: F.embedding_bag(i, w, begin(n), mode="sum"),
    "means": lambda i, w, n: F.embedding_bag(i, w, begin(n)),
    "means without padding": lambda i, w, n: F.embedding_bag(i, w, begin(n), padding_idx=7),
    "padding from the end": lambda i, w, n: F.embedding_bag(i, w, begin(n), mode="sum", padding_idx=-13),
    "weighed": lambda i, w, n: F.embedding_bag(i, w, begin(n), mode="sum", per_sample_weights=w[:12, 0]),
    "last offset": lambda i, w, n: F.embedding_bag(i, w, ends(n), include_last_offset=True),
    "largest": lambda i, w, n: F.embedding_bag(i, w, begin(n), mode="max"),
    "largest without padding": lambda i, w, n: F.embedding_bag(i, w, begin(n), mode="max", padding_idx=7),
    "counted": lambda i, w, n: F.embedding_bag(i, w, torch.arange(4, device=n.device) * 3),
    "repeated": lambda i, w, n: w[:4].repeat_interleave(n * 1, 0, output_size=12) + i.unsqueeze(1),
    "repeated by a function": lambda i, w, n: torch.repeat_interleave(w[0], n + 0, output_size=i.shape[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_kernels_would_believe_is_sent_as_indices(name: str, dynamic: bool) -> None:
    backend, function = CodecBackend(), FUNCTIONS[name]
    results = []
    for run in (function, torch.compile(function, backend=backend, dynamic=dynamic)):
        weight = torch.linspace(-2, 3, 80).reshape(20, 4)
        weight[7] *= float("nan") if "padding" in name else 1
        weight.requires_grad_()
        result = run(INDICES, weight, LENGTHS)
        result.square().sum().backward()
        results.append((result.detach(), weight.grad))
    assert [(report.message, report.unfaithful) for report in backend.reports] == [("", [])]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["sums", "last offset", "repeated"])
@pytest.mark.parametrize("lengths", [[3, -1, 5, 5], [3, 9, 40, 0], [-3, 6, 5, 4]])
def test_numbers_that_torch_would_believe_end_the_program(name: str, lengths: list[int]) -> None:
    graphs: list[Any] = []

    def keep(graph_module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(with_safe_offsets(graph_module))
        return graphs[-1].forward

    compiled = torch.compile(FUNCTIONS[name], backend=keep)
    weight = torch.ones(20, 4)
    compiled(INDICES, weight, LENGTHS)
    with pytest.raises(RuntimeError):
        compiled(INDICES, weight, torch.tensor(lengths))
    assert len(graphs) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_narrow_numbers_are_as_near_as_those_of_the_kernel(mode: str, dtype: torch.dtype) -> None:
    graphs: list[Any] = []

    def keep(graph_module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(with_safe_offsets(graph_module))
        return graphs[-1].forward

    function = torch.compile(lambda i, w, n: F.embedding_bag(i, w, begin(n), mode=mode), backend=keep)
    results = []
    for run, kind in ((function, dtype), (function.__wrapped__, dtype), (function.__wrapped__, torch.float64)):
        weight = torch.linspace(-2, 3, 80).reshape(20, 4).to(dtype).to(kind).requires_grad_()
        result = run(INDICES, weight, LENGTHS)
        result.square().sum().backward()
        results.append(torch.cat([result.detach(), weight.grad]))
    ours, kernels, exact = results
    assert ours.dtype is dtype
    assert all(node.target is not F.embedding_bag for node in graphs[0].graph.nodes)
    assert (ours - exact).abs().max() <= (kernels - exact).abs().max() * 1.01


def test_gradients_of_the_largest_are_those_of_one_row() -> None:
    """Of rows that are equal, the first."""
    weight = torch.ones(20, 4, requires_grad=True)
    backend = CodecBackend()
    torch.compile(FUNCTIONS["largest"], backend=backend)(INDICES, weight, LENGTHS).sum().backward()
    assert [report.outcome for report in backend.reports] == ["sent"]
    assert weight.grad is not None
    assert weight.grad[:, 0].nonzero().flatten().tolist() == sorted(INDICES[[0, 3, 8]].tolist())
