"""The site of the documents is whole: `docs/site.py` builds it, and refuses what a reader would stumble over."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from .programs import load_program


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return load_program("site")


def test_the_site_is_built_with_a_page_for_each_document(site: ModuleType, tmp_path: Path) -> None:
    assert site.main(tmp_path) == 0
    built = tmp_path / "site"
    assert "A compile farm for" in (built / "index.html").read_text(encoding="utf-8")
    assert "COMPILEFARM_ADDRESS" in (built / "docs" / "reference" / "index.html").read_text(encoding="utf-8")
    assert (built / "tests" / "bench" / "two-cores.svg").is_file()


@pytest.mark.parametrize("text", ["[lost](nothing.md)", "[lost](docs/pods.md#nothing)"])
def test_a_broken_link_or_anchor_fails(site: ModuleType, tmp_path: Path, text: str) -> None:
    assert site.main(tmp_path) == 0
    page = tmp_path / "pages" / "README.md"
    page.write_text(page.read_text(encoding="utf-8") + f"\n{text}\n", encoding="utf-8")
    assert site.build_site(tmp_path / "pages", site=tmp_path / "site") == 1
