"""Values are shown as words."""

from __future__ import annotations

import pytest

from compilefarm.cli.words import enum_words
from compilefarm.v1.job_pb2 import Phase


@pytest.mark.parametrize(("number", "words"), [(Phase.PHASE_COMPILING, "compiling"), (99, "phase 99")])
def test_a_phase_that_only_a_newer_farm_knows_has_its_number(number: int, words: str) -> None:
    assert enum_words(Phase, number, prefix="PHASE_") == words
