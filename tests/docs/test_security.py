"""SECURITY.md: what it claims names tests that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
_TEST = re.compile(r"`((?:tests/[a-z_/]+/)?)(test_[a-z_]+\.py)`")
# A name without a folder lies beside the one before it, or in one of these.
_HOSTILE = ("tests/hostile/", "tests/admission/")


def threats() -> list[str]:
    """The rows of the threat table, without its head."""
    table = TEXT.partition("\n|---")[2].partition("\n\n")[0]
    return [row for row in table.splitlines() if row.startswith("| ")]


def findings() -> list[str]:
    """What was found and mended, of all dates."""
    listed = TEXT.partition("## Found and mended")[2].partition("\nOut of scope")[0]
    return listed.split("\n- ")[1:]


def missing(text: str) -> Iterator[str]:
    beside = _HOSTILE[0]
    for folder, name in _TEST.findall(text):
        beside = folder or beside
        if not any((ROOT / place / name).is_file() for place in ((folder,) if folder else (beside, *_HOSTILE))):
            yield f"{folder}{name}"


@pytest.mark.parametrize("claims", [threats, findings])
def test_every_row_names_tests_that_there_are(claims: Callable[[], list[str]]) -> None:
    rows = claims()
    assert len(rows) > 15
    assert [row for row in rows if not _TEST.search(row)] == []
    assert [name for row in rows for name in missing(row)] == []


def test_every_hostile_client_is_named() -> None:
    paths = [path for folder in _HOSTILE for path in (ROOT / folder).glob("test_*.py")]
    assert len(paths) > 15
    assert [path.name for path in paths if path.name not in TEXT] == []
