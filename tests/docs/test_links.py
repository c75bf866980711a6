"""Links of the documents lead to files and headings that exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links_of(text: str) -> list[str]:
    found = LINK.findall(CODE.sub("", text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors_of(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in HEADING.findall(text):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def broken(link: str, *, document: Path) -> str | None:
    """What is missing, or None."""
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return f"{link}: there is no {target}"
    if anchor and anchor not in anchors_of(target.read_text(encoding="utf-8")):
        return f"{link}: {target.name} has no such heading"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    found = [broken(link, document=document) for link in links_of(document.read_text(encoding="utf-8"))]
    assert [message for message in found if message] == []


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# Two words, and `code`\n[b](b.md) [c](#two-words-and-code) [d](#three) [e](a.md#three) `[f](f)`\n"
    )
    assert links_of(document.read_text()) == ["b.md", "#two-words-and-code", "#three", "a.md#three"]
    lost = [link for link in links_of(document.read_text()) if broken(link, document=document)]
    assert lost == ["b.md", "#three", "a.md#three"]


def test_all_documents_can_be_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop().resolve()
        if document in reached or document.suffix != ".md":
            continue
        reached.add(document)
        text = document.read_text(encoding="utf-8")
        ahead += [document.parent / link.partition("#")[0] for link in links_of(text) if link.partition("#")[0]]
    assert set(DOCUMENTS) <= reached
