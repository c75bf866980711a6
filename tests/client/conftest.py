"""A farm without torch, in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compilefarm.client.testing import FarmServicer, serving


@pytest.fixture
def servicer() -> FarmServicer:
    return FarmServicer()


@pytest.fixture
def address(servicer: FarmServicer) -> Iterator[str]:
    with serving(servicer) as address:
        yield address
