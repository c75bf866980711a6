"""A program of the table goes through the codec, once in a process, and stays what it was. Nothing is compiled."""

from __future__ import annotations

import functools

import pytest

from .run import Row, check_codec
from .table import PROGRAMS

# The goal; it only ever goes up.
SHARE_ON_THE_WIRE = 0.95


@functools.cache
def row_of(name: str) -> Row:
    return check_codec(PROGRAMS[name])


def assert_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    """Skips what cannot run here."""
    row = row_of(name)
    if row.lacking is not None:
        pytest.skip(row.lacking)
    assert not row.crashes, "\n".join(row.crashes)
    assert not row.differences
    assert row.graphs, "Dynamo captured nothing, so nothing was tried"
