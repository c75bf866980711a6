"""Calls for entries of torch's own caches: signed by whoever writes, and read if they are trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from compilefarm.client.clock import Clock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_calls import calling, read_signing_key
from compilefarm.core.cache_entries import KEYS_PER_QUESTION, MOST_LISTED, describe, sendable_key
from compilefarm.core.chunks import UPLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, FarmError, UntrustedArtifact
from compilefarm.v1.cache_service_pb2 import (
    CacheEntry,
    FindEntryRequest,
    FindMissingEntriesRequest,
    FoundEntry,
    GetRequest,
    GetResponse,
    ListEntriesRequest,
    PutRequest,
    RemoveEntriesRequest,
    TorchCache,
)

if TYPE_CHECKING:
    from compilefarm.core.public_keys import PublicKey
    from compilefarm.v1.bundle_pb2 import BundlePart
    from compilefarm.v1.cache_service_pb2_grpc import CacheServiceStub


class CacheCalls:
    """Calls for entries. Threads share it, and forked processes may go on using it. Every call raises FarmErrors, and
    Silent if it takes longer than the configuration allows.

    Args:
        config: of the client.
        connection: to the farm.
        clock: time.

    Raises:
        ConfigurationError: the signing key cannot be used.
    """

    def __init__(self, config: ClientConfig, *, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._timeout_seconds = config.cache_timeout_seconds
        self._trusted = (*config.trust.trusted_keys, *config.trust.trusted_cache_keys)
        self._signing_key = read_signing_key(config.trust.cache_signing_key, signs="cache entries")

    @property
    def lacks_signing_key(self) -> bool:
        """Whether this pod reads signed entries alone and cannot sign: what it wrote, nobody like it would read."""
        return bool(self._trusted) and self._signing_key is None

    def give_up(self, error: FarmError) -> None:
        """Leaves the farm alone for a while, if the error says that nobody answers."""
        self._connection.give_up(error)

    def signs_like(self, entry: CacheEntry) -> bool:
        """Whether an entry is signed by the key of this pod; without one, whether nobody has signed it."""
        if self._signing_key is None:
            return not entry.HasField("signature")
        return self._is_signed(entry, trusted=[self._signing_key.public])

    def vouches_for(self, entry: CacheEntry) -> bool:
        """Whether those for whom this pod signs may be expected to read an entry: its own key has signed it, or one
        that it trusts. Without a key to sign with, whatever it reads itself.
        """
        if self._signing_key is None:
            return True
        return self._is_signed(entry, trusted=[self._signing_key.public, *self._trusted])

    def read(self, cache: TorchCache.ValueType, key: str) -> bytes:
        """Returns the bytes of an entry.

        Raises:
            NotStored: there is none.
            UntrustedArtifact: no trusted key has signed it.
            CorruptArtifact: it is another entry, or has other bytes than it says.
        """
        with self._getting(cache, sendable_key(key)) as (entry, answers):
            self._require_trusted(entry)
            return _receive(answers, key=entry.key, digest=entry.digest, size_bytes=entry.size_bytes)

    def read_part(self, part: BundlePart) -> bytes:
        """Returns the content of a part of a bundle, of which the list that names it says digest and size: whoever has
        signed that has signed this.

        Raises:
            As `read`.
        """
        with self._getting(TorchCache.TORCH_CACHE_MEGA_PART, part.digest) as (_, answers):
            return _receive(answers, key=part.digest, digest=part.digest, size_bytes=part.size_bytes)

    def find(self, cache: TorchCache.ValueType, key: str, *, ahead_bytes: int) -> Sequence[FoundEntry]:
        """Returns an entry, and so many bytes of those that others have asked for after it; nothing if there is none.
        They are checked when they are used (`content_of`).

        Args:
            cache: of the entry.
            key: as the wire takes it.
            ahead_bytes: of further ones.
        """
        request = FindEntryRequest(cache=cache, key=key, ahead_bytes=ahead_bytes)
        with self._calling() as (stub, timeout_seconds):
            return stub.FindEntry(request, timeout=timeout_seconds).entries

    def content_of(self, found: FoundEntry, cache: TorchCache.ValueType, key: str) -> bytes:
        """Returns the bytes of an entry that was found.

        Args:
            found: the entry.
            cache: in which it is to be.
            key: as the wire takes it.

        Raises:
            As `read`.
        """
        if not found.HasField("content"):
            return self.read(cache, key)
        _require_named(found.entry, cache, key)
        self._require_trusted(found.entry)
        return _checked(found.content, key=key, digest=found.entry.digest)

    def write(self, cache: TorchCache.ValueType, key: str, content: bytes) -> None:
        """Writes an entry, in place of one of that name."""
        self._put(self._sign(describe(content, cache=cache, key=key)), content)

    def write_part(self, digest: str, content: bytes) -> None:
        """Writes a part of a bundle.

        Raises:
            InvalidRequest: the content has another digest.
        """
        self._put(describe(content, cache=TorchCache.TORCH_CACHE_MEGA_PART, key=digest), content)

    def _put(self, entry: CacheEntry, content: bytes) -> None:
        with self._calling() as (stub, timeout_seconds):
            stub.Put(_pieces(entry, content), timeout=timeout_seconds)

    def list_entries(self, cache: TorchCache.ValueType, *, key_prefix: str) -> list[CacheEntry]:
        """Returns the descriptions of entries whose keys begin so, those written last at the end, trusted or not.

        Raises:
            CorruptArtifact: they are more than a farm lists, or others than were asked for: an entry says under which
                name it was signed, and who answers may have it read under another.
        """
        request = ListEntriesRequest(cache=cache, key_prefix=key_prefix)
        found: list[CacheEntry] = []
        with self._calling() as (stub, timeout_seconds):
            answers = stub.ListEntries(request, timeout=timeout_seconds)
            for answer in answers:
                found += answer.entries
                if len(found) > MOST_LISTED:
                    answers.cancel()
                    raise CorruptArtifact(f"the farm lists more than {MOST_LISTED} entries, the most that farms list")
        for entry in found:
            if entry.cache != cache or not entry.key.startswith(key_prefix):
                raise CorruptArtifact(f"the farm lists cache entry {entry.key[:100]!r}, which was not asked for")
        return found

    def find_missing(self, cache: TorchCache.ValueType, keys: Sequence[str]) -> set[str]:
        """Returns those of some keys that the farm has no entry of."""
        missing: set[str] = set()
        for start in range(0, len(keys), KEYS_PER_QUESTION):
            request = FindMissingEntriesRequest(cache=cache, keys=keys[start : start + KEYS_PER_QUESTION])
            with self._calling() as (stub, timeout_seconds):
                told = stub.FindMissingEntries(request, timeout=timeout_seconds).keys
            # Whoever answers may name others.
            missing.update(set(request.keys).intersection(told))
        return missing

    def remove(self, cache: TorchCache.ValueType, keys: Sequence[str]) -> None:
        """Removes entries of this caller's own namespace; what is not there counts as removed."""
        for start in range(0, len(keys), KEYS_PER_QUESTION):
            request = RemoveEntriesRequest(cache=cache, keys=keys[start : start + KEYS_PER_QUESTION])
            with self._calling() as (stub, timeout_seconds):
                stub.RemoveEntries(request, timeout=timeout_seconds)

    @contextmanager
    def _getting(self, cache: TorchCache.ValueType, key: str) -> Iterator[tuple[CacheEntry, Iterator[GetResponse]]]:
        """Yields what the farm says of an entry, and the pieces of its bytes."""
        with self._calling() as (stub, timeout_seconds):
            answers = stub.Get(GetRequest(cache=cache, key=key), timeout=timeout_seconds)
            try:
                entry = next(answers, GetResponse()).entry
                _require_named(entry, cache, key)
                yield entry, answers
            finally:
                answers.cancel()

    def _require_trusted(self, entry: CacheEntry) -> None:
        if self._trusted:
            from compilefarm.core.signatures import check_signature_of_entry

            check_signature_of_entry(entry, trusted=self._trusted)

    def _is_signed(self, entry: CacheEntry, *, trusted: Sequence[PublicKey]) -> bool:
        from compilefarm.core.signatures import check_signature_of_entry

        try:
            check_signature_of_entry(entry, trusted=trusted)
        except UntrustedArtifact:
            return False
        return True

    def _sign(self, entry: CacheEntry) -> CacheEntry:
        if self._signing_key is not None:
            entry.signature.CopyFrom(self._signing_key.signature_of_entry(entry))
        return entry

    @contextmanager
    def _calling(self) -> Iterator[tuple[CacheServiceStub, float | None]]:
        with calling(self._connection, timeout_seconds=self._timeout_seconds, clock=self._clock) as (stubs, seconds):
            yield stubs.caches, seconds


def _receive(answers: Iterator[GetResponse], *, key: str, digest: str, size_bytes: int) -> bytes:
    received = bytearray()
    for answer in answers:
        received += answer.chunk
        if len(received) > size_bytes:
            raise CorruptArtifact(f"cache entry {key} has more than the {size_bytes} bytes announced")
    return _checked(bytes(received), key=key, digest=digest)


def _require_named(entry: CacheEntry, cache: TorchCache.ValueType, key: str) -> None:
    if (entry.cache, entry.key) != (cache, key):
        raise CorruptArtifact(f"the farm answered with cache entry {entry.key[:100]!r} instead of {key!r}")


def _checked(content: bytes, *, key: str, digest: str) -> bytes:
    if digest_of(content) != digest:
        raise CorruptArtifact(f"cache entry {key} came with other bytes than its digest says")
    return content


def _pieces(entry: CacheEntry, content: bytes) -> Iterator[PutRequest]:
    yield PutRequest(entry=entry)
    for piece in cut(content, chunk_bytes=UPLOAD_CHUNK_BYTES):
        yield PutRequest(chunk=bytes(piece))
