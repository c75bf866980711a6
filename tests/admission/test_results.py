"""Results of operators that are not what fake tensors have said: a program that would go by them stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.nn.functional import embedding_bag, scaled_dot_product_attention

from compilefarm.builder.generated_sources import watching_sources
from compilefarm.graph.admission import Admitted
from compilefarm.graph.testing import trace
from compilefarm.worker.source_check import check_source
from tests.worker.inductor import checked_compile, compiled
from tests.worker.verifying import encoded_of

Made = Callable[[torch.Tensor], torch.Tensor]
Model = Callable[[torch.Tensor], torch.Tensor]

aten = torch.ops.aten
IDS, BEGINS = torch.arange(50) % 10, torch.tensor([0, 3])
NUMBERS = torch.arange(6.0).view(2, 3)


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of a library.

    Attributes:
        said: what its fake kernel makes.
        made: what its kernel makes.
    """

    said: Made
    made: Made = torch.clone


OPERATORS = {
    "as_said": _Operator(torch.empty_like),
    "without_elements": _Operator(torch.empty_like, lambda x: x[:0].clone()),
    "fewer": _Operator(torch.empty_like, lambda x: x[:1].clone()),
    "other_strides": _Operator(torch.empty_like, lambda x: x.t().contiguous().t()),
    "another_dtype": _Operator(lambda x: x.new_empty(x.shape, dtype=torch.float64)),
    "a_dtype_as_large": _Operator(lambda x: x.new_empty(x.shape, dtype=torch.int32)),
    "with_elements": _Operator(lambda x: x.new_empty(0, 3)),
    "without_elements_otherwise": _Operator(lambda x: x.new_empty(2, 0, 3), lambda x: x.new_empty(2, 3, 0)),
}
UNREAD = ("with_elements", "without_elements_otherwise")
ADMITTED = Admitted(
    operators={f"said::{name}{which}{end}" for name in OPERATORS for which in ("", "_too") for end in ("", ".default")}
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    """Each operator twice: with one result, and as the second of two. Torch remembers what they are said to make."""
    defined = torch.library.Library("said", "FRAGMENT")
    for name, operator in OPERATORS.items():
        defined.define(f"{name}(Tensor x) -> Tensor")
        defined.define(f"{name}_too(Tensor x) -> (Tensor, Tensor)")
        defined.impl(name, operator.made, "CPU")
        defined.impl(f"{name}_too", partial(_two, operator.made), "CPU")
        torch.library.register_fake(f"said::{name}", operator.said, lib=defined)
        torch.library.register_fake(f"said::{name}_too", partial(_two, operator.said), lib=defined)
    yield
    # It is there as long as this is.
    del defined


def _two(make: Made, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clone(), make(x)


def _one_of(name: str) -> Model:
    operator = getattr(torch.ops.said, name)
    return lambda x: operator(x) + 1


def _second_of(name: str) -> Model:
    operator = getattr(torch.ops.said, f"{name}_too")
    return lambda x: operator(x)[1] + 1


def _result_of(name: str) -> Model:
    operator = getattr(torch.ops.said, name)
    return lambda x: operator(x)


@pytest.mark.parametrize(
    ("name", "model_of"),
    [
        *((name, of) for name in OPERATORS if name not in ("as_said", *UNREAD) for of in (_one_of, _second_of)),
        *((name, _result_of) for name in UNREAD),
    ],
)
def test_a_program_stops_at_a_result_that_is_not_what_was_said(name: str, model_of: Callable[[str], Model]) -> None:
    with watching_sources(check_source):
        program = compiled(trace(model_of(name), NUMBERS).encode(), admitted=ADMITTED)
    # The second is torch's own assertion.
    with pytest.raises((RuntimeError, AssertionError), match=r"was to give torch\.\w+\(|expected (size|dtype)"):
        program(NUMBERS)


@pytest.mark.parametrize("model_of", [_one_of, _second_of])
def test_and_goes_on_with_what_is_as_said(model_of: Callable[[str], Model]) -> None:
    program = compiled(trace(model_of("as_said"), NUMBERS, dynamic=True).encode(), admitted=ADMITTED)
    assert torch.equal(program(*NUMBERS.shape, NUMBERS)[0], NUMBERS + 1)
    assert torch.equal(program(7, 4, torch.zeros(7, 4))[0], torch.ones(7, 4))


class _Bags(torch.nn.Module):
    def __init__(self, table: torch.Tensor, **options: object) -> None:
        super().__init__()
        self.table, self.options = torch.nn.Parameter(table), options

    def forward(self, ids: torch.Tensor, begins: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return embedding_bag(ids, self.table, begins, per_sample_weights=next(iter(weights), None), **self.options) * 2


def _table(dtype: torch.dtype, *, in_columns: bool) -> torch.Tensor:
    table = torch.randn(10, 8).to(dtype)
    return table.t().contiguous().t() if in_columns else table


WEIGHTS = torch.rand(50)


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    ("dtype", "in_columns", "options", "weights"),
    [
        (torch.bfloat16, False, {"mode": "sum"}, ()),
        (torch.bfloat16, True, {"mode": "sum"}, ()),
        (torch.bfloat16, False, {"mode": "sum"}, (WEIGHTS.bfloat16(),)),
        (torch.bfloat16, False, {"mode": "sum", "padding_idx": 3}, ()),
        (torch.float32, True, {"mode": "sum"}, ()),
        (torch.float32, True, {"mode": "mean"}, ()),
        (torch.float16, True, {"mode": "sum"}, (WEIGHTS.half(),)),
    ],
)
def test_bags_are_served(
    *, dtype: torch.dtype, in_columns: bool, options: dict[str, object], weights: tuple[torch.Tensor, ...], trains: bool
) -> None:
    model = _Bags(_table(dtype, in_columns=in_columns), **options)
    figures = checked_compile(encoded_of(model, IDS, BEGINS, *weights, trains=trains))
    assert not figures.not_compared


@pytest.mark.parametrize("trains", [False, True])
def test_bags_of_indices_of_two_dtypes_are_served(*, trains: bool) -> None:
    model = _Bags(_table(torch.float32, in_columns=False), mode="mean")
    assert not checked_compile(encoded_of(model, IDS, BEGINS.int(), trains=trains)).not_compared


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x * self.scale
        return scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def test_attention_in_double_precision_is_trained() -> None:
    heads = torch.randn(2, 4, 6, 8, dtype=torch.float64)
    assert not checked_compile(encoded_of(_Attention(), heads, trains=True)).not_compared


def _numbers_of_bags(table: torch.Tensor, ids: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    return aten._embedding_bag_forward_only(table, ids, begins)[1] + 1  # type: ignore[no-any-return]


def test_bags_without_numbers_have_none_in_a_program() -> None:
    """They were read from address 0 on."""
    given = _table(torch.bfloat16, in_columns=False), IDS, BEGINS
    assert compiled(trace(_numbers_of_bags, *given).encode())(*given)[0].numel() == 0
