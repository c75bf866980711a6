"""Canaries of torch_internals/mega_cache.py. tests/client/test_mega_cache.py shows that torch finds what lies there."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compilefarm.torch_internals.mega_cache import (
    CachedArtifact,
    default_folder,
    load_artifact,
    local_artifacts,
    recorded_artifacts,
)

CONTENTS = {
    ("inductor", "fabcdef"): b"a graph",
    ("aot_autograd", "abcdef"): b"another",
    ("autotune", "ab/cabc.best_config"): b'{"num_warps": 4}',
    ("pgo", "a-job_None_"): b"decisions",
    ("precompile", "abc123"): b"a function",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def manager() -> Iterator[object]:
    manager = importlib.import_module("torch.compiler._cache").CacheArtifactManager
    manager._ensure_cache_artifacts_registered()
    with manager.with_fresh_cache():
        yield manager


def read(artifacts: object) -> dict[tuple[str, str], bytes]:
    assert all(isinstance(each, CachedArtifact) for each in artifacts)  # type: ignore[attr-defined]
    return {(each.kind, each.key): each.read() for each in artifacts}  # type: ignore[attr-defined]


def test_what_is_loaded_lies_in_the_local_caches(folder: Path) -> None:
    for (kind, key), content in CONTENTS.items():
        load_artifact(kind, key, content)
    assert read(list(local_artifacts(folder))) == CONTENTS
    assert default_folder() == folder


def test_a_key_of_decisions_is_found_again_under_its_file(folder: Path) -> None:
    load_artifact("pgo", "a/job:None:tag", b"decisions")
    (found,) = local_artifacts(folder)
    load_artifact(found.kind, found.key, b"later")
    assert read(list(local_artifacts(folder))) == {("pgo", found.key): b"later"}


def test_all_is_read_of_what_was_saved_more_than_once(manager: object) -> None:
    record = manager.record_artifact  # type: ignore[attr-defined]
    record("inductor", "first", b"1")
    assert read(recorded_artifacts()) == {("inductor", "first"): b"1"}
    record("inductor", "second", b"2")
    record("autotune", "third", {"num_warps": 4})
    assert read(recorded_artifacts()) == {
        ("inductor", "first"): b"1",
        ("inductor", "second"): b"2",
        ("autotune", "third"): b'{"num_warps": 4}',
    }


def test_nothing_is_recorded_where_nothing_was_compiled(manager: object) -> None:
    assert recorded_artifacts() == []


def test_a_file_that_torch_is_writing_is_none(folder: Path) -> None:
    load_artifact("inductor", "fabcdef", b"a graph")
    (written,) = local_artifacts(folder)
    next(folder.glob("fxgraph/*/*")).joinpath(".12.34.tmp").write_bytes(b"half")
    assert [each.read() for each in local_artifacts(folder)] == [written.read()]


def test_a_cache_that_this_torch_has_not_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="of-tomorrow"):
        load_artifact("of-tomorrow", "key", b"content")
    assert list(local_artifacts(folder)) == []


def test_a_cache_that_is_switched_off_takes_nothing(folder: Path) -> None:
    with (
        torch._dynamo.config.patch(automatic_dynamic_local_pgo=False),
        pytest.raises(ValueError, match=r"write_local_impl returned None|its cache is switched off"),
    ):
        load_artifact("pgo", "job:None:", b"decisions")
