"""Records of decisions have one form, run through in number and date, and are in the index and in ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
FORM = re.compile(
    r"# (?P<title>.+)\n\n(?P<date>\d{4}-\d\d-\d\d) · (?P<area>[a-z ]+)\n\n"
    r"## Context\n\n.+?\n\n## Decision\n\n.+?\n\n## Rejected alternatives\n\n.+?\n\n## Consequences\n\n[^#]+\n",
    re.DOTALL,
)
LINE = re.compile(r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
INDEX = LINE.findall((FOLDER / "README.md").read_text(encoding="utf-8"))


def facts_of(record: Path) -> re.Match[str]:
    found = FORM.fullmatch(record.read_text(encoding="utf-8"))
    assert found is not None, f"{record.name} lacks a part, or has one in another order"
    return found


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_parts_and_is_short(record: Path) -> None:
    facts_of(record)
    assert len(record.read_text(encoding="utf-8").splitlines()) <= 30


def test_the_index_lists_every_record_as_it_is() -> None:
    facts = [(record, facts_of(record)) for record in RECORDS]
    assert [(each.name[:4], each.name, said["title"], said["area"], said["date"]) for each, said in facts] == INDEX


def test_numbers_run_through_and_dates_do_not_go_back() -> None:
    assert [int(number) for number, *_ in INDEX] == list(range(1, len(RECORDS) + 1))
    assert [date for *_, date in INDEX] == sorted(date for *_, date in INDEX)


def test_architecture_links_every_record_by_its_title() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    linked = re.findall(r"^- \[(.+)\]\(docs/decisions/(\S+)\)$", text, re.MULTILINE)
    assert sorted((name, title) for title, name in linked) == [(name, title) for _, name, title, *_ in INDEX]
