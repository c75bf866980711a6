"""Every program of the table that is no model of a library goes through the codec and stays what it was: every other
one with the oldest torch, and those between them with later ones. `-m corpus` takes the rest.
"""

from __future__ import annotations

import pytest

from tests.ends import is_of_this_end, shared_out

from .report import share_on_the_wire
from .table import MODELS, PROGRAMS
from .trials import SHARE_ON_THE_WIRE, assert_decoded_graphs_do_what_the_captured_ones_do, row_of

# Which the oldest torch does not run.
_LATER = frozenset({"nested_compile_region_with_gradients", "switch", "switch_with_gradients"})
_OWN = [name for name in PROGRAMS if name not in MODELS]
_HERE = {name for number, name in enumerate(_OWN) if is_of_this_end(number, name, later=_LATER)}


@pytest.mark.parametrize("name", shared_out(_OWN, later=_LATER))
def test_decoded_graphs_do_what_the_captured_ones_do(name: str) -> None:
    assert_decoded_graphs_do_what_the_captured_ones_do(name)


def test_most_graphs_are_on_the_wire() -> None:
    assert share_on_the_wire([row_of(name) for name in sorted(_HERE)]) >= SHARE_ON_THE_WIRE
