"""Shares of a store of limited size: what each namespace may hold, whatever the others do.

The share is the most that each may hold so that all fit together, where those that hold less leave the rest of it to
others. So a namespace that is alone may have all, and any number that hold next to nothing take next to nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set

from compilefarm.store.backend import StoredObject
from compilefarm.store.layout import DEFAULT_NAMESPACE, namespace_of

# Has what is not known to be anybody's: it was sent to another service, or before this one began, and nobody looked
# for it here since.
NOBODY = None


def share_of(sizes: Mapping[str | None, int], *, limit_bytes: float) -> float:
    """Returns how much each may hold, for what each holds; infinity if all fit."""
    left_bytes = limit_bytes
    for place, size_bytes in enumerate(sorted(sizes.values())):
        share_bytes = left_bytes / (len(sizes) - place)
        if size_bytes > share_bytes:
            return share_bytes
        left_bytes -= size_bytes
    return math.inf


class Holdings:
    """What namespaces hold. A blob counts for each that has an artifact which names it, once, so that what one does
    changes what it holds itself, and nothing else. A blob that no artifact names counts for who relies on it.

    Attributes:
        sizes: of what each namespace holds, and NOBODY.

    Args:
        blobs: what is there, by path.
        coming: bytes that are on their way, by namespace.
    """

    def __init__(self, blobs: Mapping[str, StoredObject], *, coming: Mapping[str, int]) -> None:
        self.sizes: Counter[str | None] = Counter(coming)
        self._blobs = blobs
        # How many artifacts of a namespace name a blob.
        self._named: Counter[tuple[str, str]] = Counter()
        self._counted: set[str] = set()
        self._counted_bytes = 0

    def add(self, manifest: StoredObject, *, named: Set[str]) -> None:
        """Counts an artifact, for what its manifest is and the paths of its blobs."""
        namespace = namespace_of(manifest.path)
        self._count(manifest, namespace=namespace)
        for blob in self._there(named):
            self._named[namespace, blob.path] += 1
            if self._named[namespace, blob.path] == 1:
                self._count(blob, namespace=namespace)

    def add_loose(self, blob: StoredObject, *, holder: str) -> None:
        """Counts a blob that no artifact names."""
        self._count(blob, namespace=holder)

    def add_rest(self, size_bytes: int) -> None:
        """Counts what else there is, if all together has that size."""
        # Where nobody is asked who calls, there is no other namespace.
        owner = DEFAULT_NAMESPACE if self.sizes.keys() == {DEFAULT_NAMESPACE} else NOBODY
        self.sizes[owner] += size_bytes - self._counted_bytes

    def remove(self, manifest: StoredObject, *, named: Set[str]) -> None:
        """Counts an artifact no more."""
        namespace = namespace_of(manifest.path)
        self.sizes[namespace] -= manifest.size_bytes
        for blob in self._there(named):
            self._named[namespace, blob.path] -= 1
            if not self._named[namespace, blob.path]:
                self.sizes[namespace] -= blob.size_bytes

    def _there(self, named: Set[str]) -> Iterator[StoredObject]:
        return (self._blobs[path] for path in named if path in self._blobs)

    def _count(self, stored: StoredObject, *, namespace: str) -> None:
        self.sizes[namespace] += stored.size_bytes
        if stored.path not in self._counted:
            self._counted.add(stored.path)
            self._counted_bytes += stored.size_bytes
