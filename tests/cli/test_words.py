"""Values are shown as words."""

from __future__ import annotations

import pytest

from compilefarm.cli.words import enum_words, moment_words
from compilefarm.v1.job_pb2 import Phase


@pytest.mark.parametrize(("number", "words"), [(Phase.PHASE_COMPILING, "compiling"), (99, "phase 99")])
def test_a_phase_that_only_a_newer_farm_knows_has_its_number(number: int, words: str) -> None:
    assert enum_words(Phase, number, prefix="PHASE_") == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1970-01-01 00:00:00"),
        (1_764_054_900.9, "2025-11-25 07:15:00"),
        (2**40, "no date (1099511627776 s since 1970)"),
        (float("nan"), "no date (nan s since 1970)"),
        (1e300, "no date (1e+300 s since 1970)"),
    ],
)
def test_moments_beyond_the_calendar_are_told_as_such(seconds: float, words: str) -> None:
    assert moment_words(seconds) == words
