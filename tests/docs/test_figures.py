"""Measured figures in the documents stand beside the command that measured them, and its date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# SECURITY names a test for each figure, and RESULTS a command for each table.
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
FIGURE = re.compile(r"\b\d[\d,.]* (?:s|ms|µs|[kMG]i?B|[kMG]i?B/s)\b")
COMMAND = re.compile(r"`(?:python\s|compilefarm\s|tests/|/usr/)[^`]*`")
DATE = re.compile(r"\b\d{1,2}\s+[A-Z][a-z]+\s+20\d\d\b|\b20\d\d-\d\d-\d\d\b")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Limits and defaults, which nobody measured.
GIVEN = {
    "docs/operating.md": {"256 MB"},
    "docs/reference.md": None,
}


def sections_of(text: str) -> list[str]:
    """The parts between headings, in which command and date may stand anywhere."""
    return re.split(r"^#+ .*$", CODE.sub("", text), flags=re.MULTILINE)


def unexplained(text: str, *, given: set[str]) -> list[str]:
    """The figures of sections that lack a command or a date."""
    found = []
    for section in sections_of(text):
        if not (COMMAND.search(section) and DATE.search(section)):
            found += [figure for figure in FIGURE.findall(section) if figure not in given]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_figures_have_their_command_and_date(document: Path) -> None:
    given = GIVEN.get(document.relative_to(ROOT).as_posix(), set())
    if given is not None:
        assert unexplained(document.read_text(encoding="utf-8"), given=given) == []


def test_a_figure_without_a_command_is_noticed() -> None:
    text = "# A\n\nIt takes 0.5 s.\n\n# B\n\n2 MB (`python -m tests.bench`, 2026-11-23).\n\n# C\n\n3 ms, 4 s\n"
    assert unexplained(text, given={"4 s"}) == ["0.5 s", "3 ms"]
