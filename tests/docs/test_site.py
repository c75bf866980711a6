"""The site of the documents is whole: `docs/site.py` builds it, and refuses what a reader would stumble over."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_documents", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
