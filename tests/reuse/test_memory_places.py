"""Where tensors lie in memory decides what a program computes that writes to them, or counts from the beginning of a
memory. torch looks at it when it traces and compiles, and guards it by nothing.

Graphs run here as they were captured, so that only a farm would show a wrong result: a pod whose tensors lie in another
way has to trace.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reuse.processes import pod


def _written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2 + x


def _held(x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
    held[0].mul_(2)
    return x + held[0]


def _in_a_list(first: torch.Tensor, second: torch.Tensor) -> tuple[Any, ...]:
    return _held, first, [second]


_SHARED = torch.zeros(4)


def _global(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return _SHARED + x


class _Buffers(torch.nn.Module):
    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, x: torch.Tensor) -> Any:
        self.first.add_(1)  # type: ignore[operator]
        return x * self.second


def _model(*, is_shared: bool) -> tuple[Any, ...]:
    first = torch.ones(4)
    return _Buffers(first, first[:] if is_shared else first.clone()), torch.ones(2, 4)


def _pair(*, is_shared: bool) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(8.0)
    return memory[:4], memory[2:6] if is_shared else torch.arange(4.0)


_OVERLAPPING: dict[str, Callable[[bool], tuple[Any, ...]]] = {
    "inputs": lambda on: (_written, *_pair(is_shared=on)),
    "an input and one in a list": lambda on: _in_a_list(*_pair(is_shared=on)),
    "an input and a global one": lambda on: (_global, _SHARED.view(4) if on else torch.zeros(4)),
    "buffers": lambda on: _model(is_shared=on),
}


@pytest.mark.parametrize("case", _OVERLAPPING.values(), ids=_OVERLAPPING)
def test_tensors_that_overlap_are_noticed(case: Callable[[bool], tuple[Any, ...]], tmp_path: Path) -> None:
    assert _reasons(tmp_path, case(False), case(False)) == [""]
    assert "is another" in _reasons(tmp_path, case(False), case(True))[0]


def _by_place(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (2, 1), 0) * 2


def _in_a_branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > -100, _by_place, lambda x: x.reshape(2, 2) * 2, (x,))


def _from_its_beginning(x: torch.Tensor) -> torch.Tensor:
    return x[1:].reshape(3, 1) * 2


def _at(function: Callable[..., Any], beginning: int) -> tuple[Any, ...]:
    return function, torch.arange(12.0)[beginning : beginning + 4]


def test_where_a_tensor_begins_counts_if_a_graph_counts_from_the_beginning_of_its_memory(tmp_path: Path) -> None:
    assert _reasons(tmp_path, _at(_by_place, 4), _at(_by_place, 4)) == [""]
    assert _reasons(tmp_path, _at(_by_place, 0), _at(_by_place, 4)) == ["L['x'] is another"]
    assert _reasons(tmp_path, _at(_in_a_branch, 0), _at(_in_a_branch, 4)) == ["L['x'] is another"]
    assert _reasons(tmp_path, _at(_from_its_beginning, 0), _at(_from_its_beginning, 4)) == [""]


def test_tensors_of_one_memory_that_do_not_overlap_are_like_any_other(tmp_path: Path) -> None:
    memory = torch.arange(8.0)
    apart = _written, memory[:4], memory[4:]
    assert _reasons(tmp_path, apart, (_written, *_pair(is_shared=False))) == [""]


def _reasons(folder: Path, first: tuple[Any, ...], second: tuple[Any, ...]) -> list[str]:
    """Why a pod traces a call after another pod has published one; empty text where it does not."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    with pod(folder) as publisher:
        torch.compiler.reset()
        torch.compile(first[0], backend=publisher.backend, dynamic=False)(*first[1:])
    with pod(folder, publishes=False) as reader:
        torch.compiler.reset()
        torch.compile(second[0], backend=reader.backend, dynamic=False)(*second[1:])
    return [each.reason for each in reader.outcomes]
