"""Names in the code follow the glossary in ARCHITECTURE.md."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "service", "worker", "client", "docs", "tests")
# Words that a glossary replaced, with what is said instead. No name in the code has them.
RETIRED = {
    "boarding": "join",
    "claim": "active job",
    "demand": "an active job's tenant and priority",
    "door": "authenticator",
    "flight": "active job",
    "joint": "composite",
    "landing": "result",
    "leftover": "dead node",
    "loan": "lease",
    "restate": "adapt",
    "restated": "adapted",
    "restating": "adapting",
    "rubbish": "malformed requests",
    "seal": "signing policy",
    "stray": "descendant",
    "surrounding": "variables, context or dependencies",
    "tape": "recorder",
    "ticket": "active job",
    "visitor": "call limits",
}
# The same word for something else, and the file or folder that has it.
OTHERS = {
    # What the documents claim.
    ("claim", "tests/chaos/"),
    ("claim", "tests/docs/test_security.py"),
    # A class of Ray.
    ("demand", "tests/cluster/test_deployed_nodes.py"),
    # Files that the kernel keeps from being changed.
    ("seal", "worker/compilefarm/worker/interpreters.py"),
    # Single flight is what the field calls it.
    ("flight", "tests/service/test_single_flight.py"),
    # Graphs of forward and backward, as torch calls them.
    ("joint", "tests/graph/test_bypass.py"),
    ("joint", "tests/wrong_hits/test_replacements.py"),
}


def words_of(name: str) -> set[str]:
    """The words of a name, in small letters and without a plural."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {word.lower().removesuffix("s") for word in words} | {word.lower() for word in words}


def names_of(path: Path) -> Iterator[str]:
    yield path.stem
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.string


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*.py") if not re.search(r"_pb2(_grpc)?$", path.stem))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OpenDoor", {"open", "door"}),
        ("_seals", {"seal", "seals"}),
        ("NO_SEAL", {"no", "seal"}),
        ("HTTPDoor", {"http", "door"}),
    ],
)
def test_a_word_is_found_in_any_name(name: str, words: set[str]) -> None:
    assert words <= words_of(name)


def test_no_name_has_a_retired_word() -> None:
    found = set()
    others = set()
    for path in files():
        place = path.relative_to(ROOT).as_posix()
        for name in names_of(path):
            for word in words_of(name) & RETIRED.keys():
                means_else = {other for other in OTHERS if other[0] == word and place.startswith(other[1])}
                others |= means_else
                if not means_else:
                    found.add(f"{place}: {name}: say {RETIRED[word]!r}")
    assert sorted(found) == []
    assert others == OTHERS, "no name has these words any more"
