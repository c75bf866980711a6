"""The reference is what a graph computes where nothing is rounded to narrow floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from compilefarm.worker import reference
from compilefarm.worker.reference import find_reference
from compilefarm.worker.results import Results, run


def _reference(model: Callable[..., Any], *inputs: torch.Tensor, inside: torch.dtype = torch.bfloat16) -> Results:
    def on(given: Any) -> Results:
        return run(model, given, seed=0, written=frozenset())

    found = find_reference(on, lambda: [given.detach().clone().requires_grad_(given.requires_grad) for given in inputs],
                           inside=inside)  # fmt: skip
    assert found is not None
    return found


def _autocast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, weight)


@pytest.mark.parametrize(
    "model",
    [
        lambda x, weight: x.bfloat16() @ weight.bfloat16().t(),
        lambda x, weight: torch.nn.functional.linear(x.half(), weight.to(torch.float16)).float(),
        lambda x, weight: torch.zeros(3, 2, dtype=torch.bfloat16).add_(x @ weight.t()),
        _autocast,
    ],
)
def test_no_cast_rounds(model: Callable[..., Any]) -> None:
    x, weight = torch.rand(3, 40), torch.rand(2, 40)
    output = _reference(model, x, weight)["output 0"]
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, x.double() @ weight.double().t(), rtol=1e-12, atol=0)


def test_gradients_are_not_rounded_either() -> None:
    weight = torch.rand(40).bfloat16().requires_grad_()
    found = _reference(lambda weight: ((weight * 3).float() ** 2).sum(), weight)
    exact = weight.detach().double() * 18
    ratio = found["gradient of input 0"] / exact
    torch.testing.assert_close(ratio, ratio[0].expand(40), rtol=1e-12, atol=0)


def test_complex_numbers_and_what_is_written_to_are_wide() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.mul_(1 / 3)
        return torch.fft.rfft(x)

    found = _reference(model, torch.rand(8), inside=torch.float32)
    assert found["output 0"].dtype == torch.complex128
    assert found["input 0 afterwards"].dtype == torch.float64


def test_a_graph_that_looks_at_the_bits_of_its_floats_has_none() -> None:
    def on(given: Any) -> Results:
        return run(lambda x: x.view(torch.int32), given, seed=0, written=frozenset())

    assert find_reference(on, lambda: [torch.rand(3)], inside=torch.float32) is None


@pytest.mark.parametrize(("inside", "tried"), [(torch.bfloat16, 2), (torch.float32, 1)])
def test_where_memory_is_short_float32_will_do_for_what_is_coarser(inside: torch.dtype, tried: int) -> None:
    runs: list[torch.dtype] = []

    def on(given: Any) -> Results:
        runs.append(given[0].dtype)
        if given[0].dtype == torch.float64:
            raise torch.OutOfMemoryError
        return {}

    found = find_reference(on, lambda: [torch.rand(3)], inside=inside)
    assert (found, runs) == ({} if tried == 2 else None, [torch.float64, torch.float32][:tried])


def test_the_state_of_the_process_is_as_before() -> None:
    _reference(torch.sin, torch.rand(3), inside=torch.float32)
    assert torch.get_default_dtype() == torch.float32
    assert reference.Widening.supports_higher_order_operators


@pytest.mark.parametrize(
    ("left", "right"),
    [((20, 8), (3, 8, 4)), ((3, 5, 8), (8, 20)), ((5, 20), (20, 4)), ((3, 5, 8), (3, 8, 4))],
    ids=["rows", "columns", "inner", "batches"],
)
def test_products_of_groups_have_a_reference(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    given = [torch.randn(*shape) for shape in (left, right)]
    ends = None if len(left) == len(right) == 3 else torch.tensor([4, 4, 20], dtype=torch.int32)
    # Torch has kernels for float32, and none for float64.
    expected = F.grouped_mm(*given, offs=ends)
    found = _reference(lambda *operands: F.grouped_mm(*operands, offs=ends), *given, inside=torch.float32)
    assert found["output 0"].dtype == torch.float64
    torch.testing.assert_close(found["output 0"].float(), expected)
