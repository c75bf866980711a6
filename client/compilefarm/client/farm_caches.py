"""Entries of torch's own caches in a farm, as torch asks for them in the middle of a compile: whatever goes wrong is a
miss, or an entry that is not kept, and takes no longer than it may.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compilefarm.client.announcements import announce_defect
from compilefarm.client.clock import Budget, Clock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.settings import ConfigurationError
from compilefarm.core.cache_entries import describe, sendable_key
from compilefarm.core.chunks import UPLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, FarmError, NotStored, OutOfTime, Silent
from compilefarm.core.printable import printable
from compilefarm.v1.cache_service_pb2 import CacheEntry, GetRequest, GetResponse, PutRequest, TorchCache
from compilefarm.v1.cache_service_pb2_grpc import CacheServiceStub

if TYPE_CHECKING:
    from compilefarm.core.signatures import SigningKey

_LOGGER = logging.getLogger("compilefarm.client")


class FarmCaches:
    """Entries in a farm. Threads share it, and forked processes may go on using it.

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
        self._signing_key = _read_signing_key(config.trust.cache_signing_key)
        self._told: set[str] = set()

    def find(self, cache: TorchCache.ValueType, key: str) -> bytes | None:
        """Returns the bytes of an entry; None is a miss, whatever the reason."""
        with self._going_on("read"):
            return self._get(cache, sendable_key(key))
        return None

    def keep(self, cache: TorchCache.ValueType, key: str, content: bytes) -> None:
        """Writes an entry, if that can be done."""
        # It would take the place of one that is signed, and nobody like this pod would read it.
        if self._trusted and self._signing_key is None:
            return
        with self._going_on("written"):
            self._put(self._sign(describe(content, cache=cache, key=key)), content)

    @contextmanager
    def _going_on(self, action: str) -> Iterator[None]:
        """Goes on whatever happens inside; says once for each reason that it did."""
        try:
            yield
        except NotStored:
            return
        except FarmError as error:
            self._connection.give_up(error)
            self._tell(error, action=action)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; a compile goes on without its cache
            announce_defect(error, where="torch's caches")

    def _tell(self, error: FarmError, *, action: str) -> None:
        if error.reason not in self._told:
            self._told.add(error.reason)
            _LOGGER.warning(
                "compilefarm: entries of torch's caches are not %s, and torch goes on with local ones [%s]: %s",
                *(action, error.reason, printable(" ".join(str(error).split()))),
            )

    def _get(self, cache: TorchCache.ValueType, key: str) -> bytes:
        with self._calling() as (stub, timeout_seconds):
            answers = stub.Get(GetRequest(cache=cache, key=key), timeout=timeout_seconds)
            try:
                return self._receive(answers, cache=cache, key=key)
            finally:
                answers.cancel()

    def _receive(self, answers: Iterator[GetResponse], *, cache: TorchCache.ValueType, key: str) -> bytes:
        entry = next(answers, GetResponse()).entry
        if (entry.cache, entry.key) != (cache, key):
            raise CorruptArtifact(f"the farm answered with cache entry {entry.key[:100]!r} to a question for {key!r}")
        self._require_trusted(entry)
        received = bytearray()
        for answer in answers:
            received += answer.chunk
            if len(received) > entry.size_bytes:
                raise CorruptArtifact(f"cache entry {key} has more than the {entry.size_bytes} bytes announced")
        content = bytes(received)
        if digest_of(content) != entry.digest:
            raise CorruptArtifact(f"cache entry {key} came with other bytes than its digest says")
        return content

    def _require_trusted(self, entry: CacheEntry) -> None:
        if self._trusted:
            from compilefarm.core.signatures import check_signature_of_entry

            check_signature_of_entry(entry, trusted=self._trusted)

    def _sign(self, entry: CacheEntry) -> CacheEntry:
        if self._signing_key is not None:
            entry.signature.CopyFrom(self._signing_key.signature_of_entry(entry))
        return entry

    def _put(self, entry: CacheEntry, content: bytes) -> None:
        with self._calling() as (stub, timeout_seconds):
            stub.Put(_pieces(entry, content), timeout=timeout_seconds)

    @contextmanager
    def _calling(self) -> Iterator[tuple[CacheServiceStub, float | None]]:
        """Yields the stub and the seconds that a call may take; turns what grpc raises into FarmErrors."""
        budget = Budget(self._timeout_seconds, clock=self._clock)
        try:
            stubs = self._connection.stubs(within_seconds=budget.left())
            with self._connection.calls():
                yield CacheServiceStub(stubs.channel), budget.timeout()
        except OutOfTime:
            raise Silent(f"the farm has not answered within {self._timeout_seconds:g} s") from None


def _pieces(entry: CacheEntry, content: bytes) -> Iterator[PutRequest]:
    yield PutRequest(entry=entry)
    for piece in cut(content, chunk_bytes=UPLOAD_CHUNK_BYTES):
        yield PutRequest(chunk=bytes(piece))


def _read_signing_key(path: str) -> SigningKey | None:
    if not path:
        return None
    try:
        from compilefarm.core.signatures import read_signing_key

        return read_signing_key(Path(path).read_bytes())
    except (ImportError, OSError, ValueError) as error:
        raise ConfigurationError(f"cache entries cannot be signed with {path}: {error}") from None
