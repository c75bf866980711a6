"""What finds results that are not what torch says of them, tried in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.op_infos import drawing_numbers, operators

from .fake_results import compared, differences_of

X = torch.arange(6.0).view(2, 3)
_MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dtype": lambda x: x.new_empty(x.shape, dtype=torch.float64),
    "size": lambda x: x.new_empty(0),
    "stride": lambda x: x.t().contiguous().t(),
    "memory": lambda x: x,
    "nothing": torch.clone,
}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    defined = torch.library.Library("fake_results", "FRAGMENT")
    for name, made in _MADE.items():
        defined.define(f"{name}(Tensor x) -> Tensor")
        defined.impl(name, made, "CPU")
        torch.library.register_fake(f"fake_results::{name}", torch.empty_like, lib=defined)
    yield
    del defined


@pytest.mark.parametrize("name", _MADE)
def test_what_differs_is_found(name: str) -> None:
    found = compared(getattr(torch.ops.fake_results, name).default, [X], {})
    assert found is not None
    assert (name in found[0]) is (name != "nothing")


@pytest.mark.parametrize("name", ["nn.functional.embedding_bag", "svd"])
def test_operators_that_inductor_calls_are_as_said(name: str) -> None:
    (info,) = (info for info in operators() if info.name == name and not info.variant_test_name)
    with drawing_numbers():
        count, found = differences_of(info, "cpu", Counter(), generated=False)
    assert count > 20
    assert found == []
