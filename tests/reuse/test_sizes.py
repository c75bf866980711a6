"""Sizes of tensors, and which of them are one, are compared wherever a function finds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.reuse.processes import pod

_GLOBALS: dict[str, torch.Tensor] = {}


def _of_dictionary(batch: Any) -> torch.Tensor:
    return batch["x"] * batch["y"] * batch["x"].shape[0]


def _of_keywords(**batch: Any) -> torch.Tensor:
    return batch["x"] * batch["y"] * batch["x"].shape[0]


def _of_pair(batch: Any) -> torch.Tensor:
    return batch[0] * batch[1] * batch[0].shape[0]


def _of_object(batch: Any) -> torch.Tensor:
    return batch.x * batch.y * batch.x.shape[0]


def _of_globals(_: Any) -> torch.Tensor:
    return _GLOBALS["x"] * _GLOBALS["y"] * _GLOBALS["x"].shape[0]


def _with_globals(function: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    _GLOBALS.update(x=x, y=y)
    return function(None)


_PLACES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "arguments": (lambda x, y: x * y * x.shape[0], lambda function, x, y: function(x, y)),
    "a dictionary": (_of_dictionary, lambda function, x, y: function({"x": x, "y": y})),
    "a dictionary of dictionaries": (
        lambda batch: _of_dictionary(batch["a"]),
        lambda function, x, y: function({"a": {"x": x, "y": y}}),
    ),
    "keywords": (_of_keywords, lambda function, x, y: function(x=x, y=y)),
    "a list": (_of_pair, lambda function, x, y: function([x, y])),
    "a tuple": (_of_pair, lambda function, x, y: function((x, y))),
    "an object": (_of_object, lambda function, x, y: function(SimpleNamespace(x=x, y=y))),
    "globals": (_of_globals, _with_globals),
}


@pytest.mark.parametrize("place", _PLACES)
def test_another_size_is_noticed(place: str, tmp_path: Path) -> None:
    function, call = _PLACES[place]
    for rows, is_reused in ((3, False), (3, True), (5, False)):
        x, y = torch.ones(rows, 4), torch.ones(rows, 4)
        found, own = _run(tmp_path, function, lambda given, x=x, y=y: call(given, x, y))
        assert torch.equal(found, call(function, x, y))
        assert (own.traced == []) is is_reused, own.traced


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("is_one_first", [True, False])
def test_one_tensor_or_two_is_noticed(place: str, is_one_first: bool, tmp_path: Path) -> None:
    function, call = _PLACES[place]
    for is_one in (is_one_first, not is_one_first):
        x = torch.ones(3, 4)
        y = x if is_one else torch.ones(3, 4)
        _, own = _run(tmp_path, function, lambda given, x=x, y=y: call(given, x, y))
        assert own.traced != []


def _run(folder: Path, function: Callable[..., Any], call: Callable[..., Any]) -> Any:
    torch.compiler.reset()
    with pod(folder) as own:
        return call(torch.compile(function, backend=own.backend, dynamic=False)), own
