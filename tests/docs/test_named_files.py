"""Files that the documents name in code quotes exist."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# "core/keys.py", "v1/job.proto: FailureKind", "core/{variables,triton_knobs}.py", "test_private_names.py".
NAMED = re.compile(r"`((?:[\w{},]+/)*[\w{},]+\.(?:py|proto))(?::[^`]*)?`")
PORTIONS = ("proto", "service", "worker", "client", "tests", "docs")
# Programs of a user, as examples name them.
EXAMPLES = {"serve_model.py"}


def expanded(name: str) -> Iterator[str]:
    """The names that a name with alternatives in braces stands for."""
    parts = re.split(r"\{([^}]*)\}", name)
    yield from map("".join, itertools.product(*(part.split(",") for part in parts)))


def exists(name: str) -> bool:
    """Whether a file is there: from the root, within the package, or, without a folder, anywhere in a portion."""
    if "/" not in name:
        return any(any((ROOT / folder).rglob(name)) for folder in PORTIONS) or (ROOT / name).is_file()
    return (ROOT / name).is_file() or any(ROOT.glob(f"*/compilefarm/{name}"))


def missing(text: str) -> list[str]:
    names = {each for name in NAMED.findall(text) for each in expanded(name)}
    return sorted(name for name in names - EXAMPLES if not exists(name))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(document: Path) -> None:
    assert missing(document.read_text(encoding="utf-8")) == []


def test_a_file_that_is_not_there_is_noticed() -> None:
    text = "`core/keys.py`, `core/{keys,locks}.py`, `v1/job.proto: FailureKind`, `v1/jobs.proto`, `test_none.py`"
    assert missing(text) == ["core/locks.py", "test_none.py", "v1/jobs.proto"]
