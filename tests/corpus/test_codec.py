"""Every program of the table goes through the codec and stays what it was. Nothing is compiled."""

from __future__ import annotations

import functools

import pytest

from .report import share_on_the_wire
from .run import Row, check_codec
from .table import PROGRAMS

# The goal; it only ever goes up.
SHARE_ON_THE_WIRE = 0.95


@functools.cache
def _row(name: str) -> Row:
    return check_codec(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    row = _row(name)
    if row.lacking is not None:
        pytest.skip(row.lacking)
    assert not row.crashes, "\n".join(row.crashes)
    assert not row.differences
    assert row.graphs, "Dynamo captured nothing, so nothing was tried"


def test_most_graphs_are_on_the_wire() -> None:
    assert share_on_the_wire([_row(name) for name in PROGRAMS]) >= SHARE_ON_THE_WIRE
