"""Triton's cache of kernels (triton/runtime/cache.py): its files here, and the interface of its remote cache."""

from __future__ import annotations

from pathlib import Path

from triton.runtime.cache import FileCacheManager, RemoteCacheBackend

__all__ = ["RemoteCacheBackend", "find_local_file"]


def find_local_file(key: str, filename: str) -> bytes | None:
    """Returns the content of a file that Triton keeps for a kernel on this machine; None if there is none."""
    path = FileCacheManager(key).get_file(filename)
    return None if path is None else Path(path).read_bytes()
