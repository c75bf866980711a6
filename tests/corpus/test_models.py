"""Every model of a library goes through the codec and stays what it was.

What they are made of, the other programs of the table try piece by piece at both ends of torch; these run at one.
"""

from __future__ import annotations

import pytest

from .report import share_on_the_wire
from .table import MODELS
from .trials import SHARE_ON_THE_WIRE, assert_decoded_graphs_do_what_the_captured_ones_do, row_of


@pytest.mark.parametrize("name", MODELS)
def test_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    assert_decoded_graphs_do_what_the_captured_ones_do(name)


def test_most_graphs_are_on_the_wire() -> None:
    assert share_on_the_wire([row_of(name) for name in MODELS]) >= SHARE_ON_THE_WIRE
