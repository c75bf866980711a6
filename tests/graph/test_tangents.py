"""Zeros that forward derivatives begin with."""

from __future__ import annotations

import torch
from torch import func

from tests.corpus.codec import CodecBackend


def test_a_linearized_function_is_sent() -> None:
    def slope(x: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
        derivative: torch.Tensor = func.linearize(lambda given: given.sin() * given, x)[1](tangent)
        return derivative

    backend, (x, tangent) = CodecBackend(), torch.linspace(-2, 2, 8).reshape(2, 2, 2)
    result = torch.compile(slope, backend=backend)(x, tangent)
    assert [(report.message, report.unfaithful) for report in backend.reports] == [("", [])] * len(backend.reports)
    assert backend.reports
    torch.testing.assert_close(result, slope(x, tangent))
