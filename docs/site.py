"""Builds the site of the documents into build/site: `python docs/site.py`. Fails where a link or an anchor is broken.

mkdocs wants all pages below one folder, and links of the documents go from one folder of the repository to another. So
pages and images are copied, as they lie in the repository.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "docs" / "mkdocs.yml"


def main(build_folder: Path = ROOT / "build") -> int:
    """Builds the site in `build_folder`; returns 1, and says what is wrong, if it is not whole."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    pages = build_folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for source in sources():
        copy = pages / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return build_site(pages, site=build_folder / "site")


def build_site(pages: Path, *, site: Path) -> int:
    """Builds a site out of pages; returns 1 where a link or an anchor is broken, or a page cannot be reached."""
    try:
        build(load_config(str(CONFIG), docs_dir=str(pages), site_dir=str(site)))
    except Abort as error:
        print(error)
        return 1
    return 0


def sources() -> Iterator[Path]:
    """Yields the pages and images of the repository."""
    yield from ROOT.glob("*.md")
    for folder in ("docs", "deploy", "tests"):
        for pattern in ("*.md", "*.svg"):
            yield from (ROOT / folder).rglob(pattern)


if __name__ == "__main__":
    sys.exit(main())
