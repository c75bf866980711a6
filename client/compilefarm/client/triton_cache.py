"""Triton's remote cache in a farm. Triton imports this where TRITON_REMOTE_CACHE_BACKEND names it."""

from __future__ import annotations

from collections.abc import Iterable

from compilefarm.client.torch_caches import process_caches
from compilefarm.torch_internals.triton_caches import RemoteCacheBackend, find_local_file
from compilefarm.v1.cache_service_pb2 import TorchCache


class TritonCache(RemoteCacheBackend):  # type: ignore[misc]  # Triton has no types
    """Files of one kernel, of this machine and of the farm.

    Args:
        key: Triton's key of the kernel.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._key = key
        self._caches = process_caches()

    def get(self, filenames: Iterable[str]) -> dict[str, bytes]:
        """Returns the content of files by name: of all, or of none, since Triton takes part of a kernel for all of it.
        Triton's remote cache asks for files that this machine has, too.
        """
        found = {name: self._find(name) for name in filenames}
        return (
            {} if None in found.values() else {name: content for name, content in found.items() if content is not None}
        )

    def put(self, filename: str, data: bytes) -> None:
        """Writes a file."""
        self._caches.keep(TorchCache.TORCH_CACHE_TRITON, self._name(filename), data)

    def _find(self, filename: str) -> bytes | None:
        try:
            local = find_local_file(self._key, filename)
        except FileNotFoundError:
            # Another process has removed it since it was seen.
            local = None
        except OSError as error:
            # Triton would put what the farm has in its place, and fail.
            self._caches.leave_out(
                "unreadable_file", why=f"Triton's {filename} on this machine: {error}", action="read"
            )
            return None
        return self._caches.find(TorchCache.TORCH_CACHE_TRITON, self._name(filename)) if local is None else local

    def _name(self, filename: str) -> str:
        return f"{self._key}/{filename}"
