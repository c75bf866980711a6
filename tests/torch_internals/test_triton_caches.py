"""Canaries of torch_internals/triton_caches.py."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_file_that_triton_keeps_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from triton.runtime.cache import FileCacheManager

    from compilefarm.torch_internals.triton_caches import find_local_file

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    FileCacheManager("key").put(b"content", "kernel.cubin")
    assert find_local_file("key", "kernel.cubin") == b"content"
    assert find_local_file("key", "kernel.json") is None


def test_a_remote_cache_is_what_triton_takes_for_one() -> None:
    knobs = pytest.importorskip("triton").knobs

    from compilefarm.torch_internals.triton_caches import RemoteCacheBackend

    assert RemoteCacheBackend.__name__ == type(knobs.cache).__dict__["remote_manager_class"].type
