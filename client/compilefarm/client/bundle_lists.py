"""The lists that a Mega-Cache bundle consists of: one for each push, until somebody who pushes puts one in the place of
many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from compilefarm.client.bundle_reports import Obstacles
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.core.bundles import is_made_alike, key_of_push, key_prefix_of, parts_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, NotStored
from compilefarm.v1.bundle_pb2 import BundlePush
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache

# Of one kind of machine and one signer, between two pushes. A pull reads each.
MOST_LISTS = 8
# Lists that are gone when they are read have been replaced meanwhile, or were damaged.
_MOST_LISTINGS = 2
_PUSHES = TorchCache.TORCH_CACHE_MEGA_PUSH
_PARTS = TorchCache.TORCH_CACHE_MEGA_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedList:
    """A list in a farm.

    Attributes:
        entry: describes it.
        push: what it says.
    """

    entry: CacheEntry
    push: BundlePush


class BundleLists:
    """Lists in a farm.

    Args:
        calls: for entries of torch's caches.
    """

    def __init__(self, calls: CacheCalls) -> None:
        self._calls = calls

    def read(self, name: str, *, obstacles: Obstacles) -> list[PushedList]:
        """Returns the lists of a bundle that can be read, the latest last.

        Raises:
            FarmError: the farm cannot be asked, or gives nothing to this caller.
        """
        found: dict[str, PushedList | None] = {}
        gone: dict[str, NotStored] = {}
        for _ in range(_MOST_LISTINGS):
            self._read_further(name, found=found, gone=gone, obstacles=obstacles)
            if not gone:
                break
        lists = [each for each in found.values() if each is not None]
        replaced = {key for each in lists for key in each.push.replaces}
        for error in (error for key, error in gone.items() if key not in replaced):
            with obstacles.noting("a push"):
                raise error
        return sorted(_standing(lists), key=lambda each: each.entry.written_seconds)

    def add(self, name: str, push: BundlePush, *, others: Sequence[PushedList]) -> None:
        """Adds a push to a bundle. Where there are many lists of such machines that this pod could have written, one
        takes their place, without the parts that the farm has no more.

        Args:
            name: of the bundle.
            push: what is added; the farm has its parts.
            others: the lists of the bundle.

        Raises:
            FarmError: it cannot be written.
        """
        replaced = self._replaceable(push, others)
        parts = parts_of([*(each.push for each in replaced), push])
        missing = self._calls.find_missing(_PARTS, [part.digest for part in parts]) if replaced else ()
        keys = [each.entry.key for each in replaced]
        whole = BundlePush(parts=[part for part in parts if part.digest not in missing], replaces=keys)
        whole.environment.CopyFrom(push.environment)
        if push.HasField("compiler"):
            whole.compiler.CopyFrom(push.compiler)
        content = whole.SerializeToString(deterministic=True)
        key = key_of_push(name, content)
        self._calls.write(_PUSHES, key, content)
        # A farm that is full may have made room by removing it.
        if replaced and not self._calls.find_missing(_PUSHES, [key]):
            self._calls.remove(_PUSHES, [each for each in keys if each != key])

    def _replaceable(self, push: BundlePush, others: Sequence[PushedList]) -> list[PushedList]:
        alike = [
            each
            for each in others
            # Whoever signs for what another has signed would have it read by those who do not trust the other.
            if is_made_alike(each.push, push) and self._calls.signs_like(each.entry)
        ]
        return alike if len(alike) >= MOST_LISTS else []

    def _read_further(
        self, name: str, *, found: dict[str, PushedList | None], gone: dict[str, NotStored], obstacles: Obstacles
    ) -> None:
        entries = self._calls.list_entries(_PUSHES, key_prefix=key_prefix_of(name))
        # A key may be there in several namespaces.
        for key, entry in {entry.key: entry for entry in entries}.items():
            if key in found or key in gone:
                continue
            found[key] = None
            with obstacles.noting("a push"):
                try:
                    found[key] = self._read(entry)
                except NotStored as error:
                    gone[key] = error

    def _read(self, entry: CacheEntry) -> PushedList:
        content = self._calls.read(_PUSHES, entry.key)
        if digest_of(content) != entry.digest:
            raise CorruptArtifact("it was written anew meanwhile")
        try:
            return PushedList(entry=entry, push=BundlePush.FromString(content))
        except DecodeError as error:
            raise CorruptArtifact(f"it was written wrongly: {error}") from None


def _standing(lists: Sequence[PushedList]) -> list[PushedList]:
    """Those that no other has taken the place of."""
    replaced = {key: each.entry.written_seconds for each in lists for key in each.push.replaces}
    return [each for each in lists if each.entry.written_seconds > replaced.get(each.entry.key, 0.0)]
