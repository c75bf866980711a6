"""What was said to Dynamo of a tensor decides what is captured, also where no guard tells it: a pod that says something
else of its tensors traces, and one that says the same does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.reuse.processes import pod

Mark = Callable[[torch.Tensor], object]


def _unmarked(_: torch.Tensor) -> None: ...


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


_MARKS: dict[str, Mark] = {
    "an address": lambda x: torch._dynamo.mark_static_address(x, guard=False),
    "a size that differs": lambda x: torch._dynamo.mark_dynamic(x, 0),
    "a range of sizes": lambda x: torch._dynamo.mark_dynamic(x, 0, min=2, max=64),
    "another range of sizes": lambda x: torch._dynamo.mark_dynamic(x, 0, min=2, max=32),
    "a size that may differ": lambda x: torch._dynamo.maybe_mark_dynamic(x, 0),
    "a size that is the same": lambda x: torch._dynamo.mark_static(x, 0),
    "a size that nothing is known of": lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
    "another size that differs": lambda x: torch._dynamo.mark_dynamic(x, 1),
}


@pytest.mark.parametrize("mark", _MARKS.values(), ids=_MARKS)
def test_what_is_marked_alike_is_reused(mark: Mark, tmp_path: Path) -> None:
    assert _publish_and_reuse(tmp_path, mark, mark) == []


@pytest.mark.parametrize("mark", _MARKS.values(), ids=_MARKS)
def test_a_mark_that_was_not_there_is_noticed(mark: Mark, tmp_path: Path) -> None:
    assert _publish_and_reuse(tmp_path, _unmarked, mark) == ["L['x'] is another"]


@pytest.mark.parametrize("mark", _MARKS.values(), ids=_MARKS)
def test_a_mark_that_is_not_there_is_noticed(mark: Mark, tmp_path: Path) -> None:
    assert _publish_and_reuse(tmp_path, mark, _unmarked) == ["L['x'] is another"]


def test_another_range_of_sizes_is_noticed(tmp_path: Path) -> None:
    ranges = _MARKS["a range of sizes"], _MARKS["another range of sizes"]
    assert _publish_and_reuse(tmp_path, *ranges) == ["L['x'] is another"]


class _Whole(int):
    """A number of a class of its own, which has no namespace."""

    __slots__ = ()


@pytest.mark.parametrize("kind", [np.float64, np.str_, _Whole])
def test_numbers_and_texts_of_other_classes_that_are_set_on_a_tensor_are_compared(
    kind: Callable[[int], object], tmp_path: Path
) -> None:
    def mark(number: int) -> Mark:
        return lambda x: setattr(x, "scale", kind(number))

    assert _publish_and_reuse(tmp_path, mark(2), mark(2)) == []
    assert _publish_and_reuse(tmp_path, mark(2), mark(3)) == ["L['x'] is another"]


@dataclass
class _State:
    """What libraries set on weights, such as those that quantize them."""

    scale: torch.Tensor
    lock: Any


@pytest.mark.parametrize("value", [{1: "a", "b": 2}, _State(torch.ones(2), threading.Lock())], ids=["keys", "state"])
def test_what_has_no_description_on_a_tensor_keeps_nobody_from_reusing(value: object, tmp_path: Path) -> None:
    def mark(x: torch.Tensor) -> None:
        x.state = value  # type: ignore[attr-defined]

    assert _publish_and_reuse(tmp_path, mark, mark) == []


class _Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.offset


def test_what_dynamo_marks_itself_is_reused_before_and_after(tmp_path: Path) -> None:
    x = torch.ones(3, 4)
    for names in ((), ("weight",), ("weight", "offset")):
        model = _Scales()
        for name in names:
            torch._dynamo.mark_static_address(getattr(model, name), guard=False)
        torch.compiler.reset()
        with pod(tmp_path) as own:
            torch.compile(model, backend=own.backend, dynamic=False)(x)
        assert own.traced == ([] if names else ["nothing is stored"])


def _publish_and_reuse(folder: Path, first: Mark, second: Mark) -> list[str]:
    """Why the second of two pods traces, which say something of their input each."""
    for mark in (first, second):
        x = torch.ones(3, 4)
        mark(x)
        torch.compiler.reset()
        with pod(folder) as own:
            found = torch.compile(_doubled, backend=own.backend)(x)
        assert torch.equal(found, _doubled(x))
    return own.traced
