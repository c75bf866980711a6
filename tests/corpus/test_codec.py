"""Every program of the table that is no model of a library goes through the codec and stays what it was."""

from __future__ import annotations

import pytest

from .report import share_on_the_wire
from .table import MODELS, PROGRAMS
from .trials import SHARE_ON_THE_WIRE, assert_decoded_graphs_do_what_the_captured_ones_do, row_of

_OWN = [name for name in PROGRAMS if name not in MODELS]


@pytest.mark.parametrize("name", _OWN)
def test_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    assert_decoded_graphs_do_what_the_captured_ones_do(name)


def test_most_graphs_are_on_the_wire() -> None:
    assert share_on_the_wire([row_of(name) for name in _OWN]) >= SHARE_ON_THE_WIRE
