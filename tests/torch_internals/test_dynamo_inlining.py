"""Canaries of torch_internals/dynamo_inlining.py."""

from __future__ import annotations

from typing import Any

import torch

from compilefarm.torch_internals.dynamo_inlining import NotConstant, watching_inlined_calls


def _inner(x: torch.Tensor, word: str) -> torch.Tensor:
    return x + len(word)


def test_inlined_functions_are_seen_with_what_they_are_called_with() -> None:
    seen: list[Any] = []
    torch.compiler.reset()
    with watching_inlined_calls(lambda code, arguments: seen.append((code, arguments))):
        torch.compile(lambda x: _inner(x, "ab") + _inner(x, "abc"), backend="eager")(torch.ones(2))
    assert seen == [(_inner.__code__, [NotConstant, "ab"]), (_inner.__code__, [NotConstant, "abc"])]
