"""The guards of manifests that were read, so that those that do not fit a request need not be read again.

A key has a variant for each way in which sizes decide something, any number of them. To read a manifest takes a tenth
of a millisecond, to evaluate its guards some microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compilefarm.store.backend import StoredObject
from compilefarm.store.cache import Cache
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.manifest_pb2 import Manifest

_MOST_BYTES = 16 * 1024 * 1024
# Measured: a comparison of a symbol and a number takes 12 bytes on the wire, 1600 when it is parsed, and 4 us; one of a
# thousand numbers 4 kB, 43 kB, and 0.8 ms.
_GROWTH_WHEN_PARSED = 11
_LEAST_BYTES = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guards:
    """The guards of a manifest.

    Attributes:
        guards: the conditions.
        size_bytes: what they take in memory.
    """

    guards: Sequence[Expression]
    size_bytes: int


class KnownGuards:
    """Guards by manifest; those that were asked for least recently are forgotten first.

    Args:
        most_bytes: what they may take in memory.
    """

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        # By the path and the tag of a manifest: another one at that path has another tag.
        self._known: Cache[tuple[str, str], _Guards] = Cache(
            limit_bytes=most_bytes, size_of=lambda guards: guards.size_bytes
        )

    def find(self, stored: StoredObject) -> Sequence[Expression] | None:
        """Returns the guards of a manifest; None if they are not known."""
        known = self._known.find((stored.path, stored.tag))
        return None if known is None else known.guards

    def add(self, stored: StoredObject, manifest: Manifest) -> None:
        """Remembers the guards of a manifest, which was read after its listing."""
        name = stored.path, stored.tag
        size_bytes = _LEAST_BYTES + _GROWTH_WHEN_PARSED * sum(guard.ByteSize() for guard in manifest.guards)
        # Not those of the manifest, which would keep all of it.
        copied = Manifest(guards=manifest.guards).guards
        self._known.drop(name)
        self._known.keep(name, _Guards(guards=copied, size_bytes=size_bytes))
