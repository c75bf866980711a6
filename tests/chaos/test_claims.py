"""The claims in short. `python -m tests.chaos` tries them at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from .claims import CLAIMS
from .verdicts import Scale


@pytest.mark.parametrize("name", CLAIMS)
def test_the_claim_holds(name: str, tmp_path: Path) -> None:
    verdict = CLAIMS[name](Scale(short=True, folder=tmp_path))
    assert not verdict.problems, verdict
