"""Tuning results as the farm keeps them: torch reads what it has written, and people what was tuned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compilefarm.client.tuning_entries import TuningEntry, content_of_torch, describe_entry, read_entry, write_entry

ONE, ALL = "pt2:abc::a kernel:c1", "pt2:bundled-autotune-v1::a graph:c1"
BEST = {"XBLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "of those", "triton_cache_hash": None}


class Sources:
    """Sources of kernels, without a folder."""

    def find(self, name: str) -> str | None:
        return None if name == "unknown" else f"source of {name}"


def described(kept: Any, *, key: str) -> bytes:
    return describe_entry(json.dumps(kept).encode(), key=key, sources=Sources())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "kept", "sources"),
    [
        (ONE, BEST, {"a kernel": "source of a kernel"}),
        (ALL, {"first": BEST, "unknown": BEST}, {"first": "source of first"}),
    ],
    ids=["a kernel", "kernels of a graph"],
)
def test_torch_reads_what_it_has_written_and_the_sources_lie_beside_it(
    key: str, kept: dict[str, Any], sources: dict[str, str]
) -> None:
    content = described(kept, key=key)
    assert json.loads(content_of_torch(content, key=key)) == kept
    entry = read_entry(content, key=key)
    assert entry is not None
    assert entry.sources == sources
    assert set(map(json.dumps, entry.best.values())) == {json.dumps(BEST)}
    assert content_of_torch(write_entry(entry, key=key), key=key) == content_of_torch(content, key=key)


@pytest.mark.parametrize(
    "content", [b"", b"no JSON", b"[1]", b"{}", b'{"a": [1]}', b"[" * 100_000], ids=lambda content: repr(content[:9])
)
def test_what_is_no_result_is_kept_as_it_is_and_torch_is_given_nothing(content: bytes) -> None:
    assert describe_entry(content, key=ONE, sources=Sources()) == content  # type: ignore[arg-type]
    assert content_of_torch(content, key=ONE) is None
    assert read_entry(content, key=ONE) is None


WRONG_NUMBERS = [
    {"num_warps": None},
    {"num_warps": 0},
    {"num_warps": 3},
    {"num_warps": 4.0},
    {"num_warps": True},
    {"num_warps": 2**40},
    {"num_stages": None},
    {"num_stages": -1},
    {"num_stages": 1.5},
    {"XBLOCK": 0},
    {"XBLOCK": 100},
    {"XBLOCK": 2**14},
    {"R0_BLOCK": 2**20},
    # Of a part of a combo kernel, and of a reduction in parts.
    {"XBLOCK_0": 2**14},
    {"RSPLIT": 128},
]


@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=str)
def test_torch_is_given_no_numbers_that_no_kernel_can_be_built_with(wrong: dict[str, Any]) -> None:
    """2.15 builds with numbers of an edited file that it would not try itself."""
    best = {name: value for name, value in {**BEST, **wrong}.items() if value is not None or name not in wrong}
    assert content_of_torch(json.dumps(best).encode(), key=ONE) is None
    others = content_of_torch(json.dumps({"first": BEST, "second": best}).encode(), key=ALL)
    assert json.loads(others or b"{}") == {"first": BEST}


def test_a_result_that_another_release_wrote_without_sources_is_one_too() -> None:
    assert read_entry(json.dumps(BEST).encode(), key=ONE) == TuningEntry(best={"a kernel": BEST})
    assert json.loads(content_of_torch(json.dumps(BEST).encode(), key=ONE)) == BEST


def test_a_release_that_knows_no_sources_takes_such_an_entry_for_one_of_other_configurations() -> None:
    """torch compares this hash before it looks at the rest (_inductor/runtime/autotune_cache.py)."""
    assert "configs_hash" not in json.loads(described(BEST, key=ONE))
