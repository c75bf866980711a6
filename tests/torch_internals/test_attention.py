"""Canaries of torch_internals/attention.py."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

from compilefarm.torch_internals.attention import choose_backend, priority_order, set_priority_order


def test_backends_have_the_numbers_of_their_public_names() -> None:
    query = torch.rand(1, 1, 8, 8)
    assert choose_backend(query, query, query) in priority_order()
    assert set(priority_order()) <= {backend.value for backend in SDPBackend.__members__.values()}


def test_the_order_that_is_set_is_the_order() -> None:
    before = priority_order()
    set_priority_order(before[::-1])
    try:
        assert priority_order() == before[::-1]
    finally:
        set_priority_order(before)
