"""Floats that are computed of floats and sizes that differ from call to call."""

from __future__ import annotations

import torch

from tests.corpus.codec import CodecBackend


def test_a_float_that_is_computed_of_another_and_of_counts_is_sent() -> None:
    """As optimizers without a schedule compute weights of a learning rate and of the steps that they have counted."""

    def weighed(x: torch.Tensor, rate: float, step: int) -> torch.Tensor:
        warm = rate * ((step + 1) / 7)
        return x * max(warm, 0.1) + (step**0.5) * rate * max(rate, x.shape[0] * warm)

    backend = CodecBackend()
    compiled = torch.compile(weighed, backend=backend, dynamic=True)
    for rows, rate, step in ((3, 0.5, 2), (4, 0.25, 5), (5, 3.5, 11)):
        x = torch.linspace(-2, 2, rows * 2, dtype=torch.float64).reshape(rows, 2)
        torch.testing.assert_close(compiled(x, rate, step), weighed(x, rate, step), rtol=1e-15, atol=0)
    assert [(report.message, report.unfaithful) for report in backend.reports] == [("", [])] * len(backend.reports)
    assert backend.reports
