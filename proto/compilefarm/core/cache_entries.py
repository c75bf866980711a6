"""Entries of torch's own caches: their names, and what a signature of one covers."""

from __future__ import annotations

import re

from compilefarm.core.digests import check_digest, digest_of
from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache

LONGEST_KEY = 1000
# cache_service.proto: ListEntriesResponse.entries, FindMissingEntriesRequest.keys.
ENTRIES_PER_ANSWER = 100
KEYS_PER_QUESTION = 1000
# Of a listing, those written last.
MOST_LISTED = 10_000
# Of a description: names, a digest and a signature.
LONGEST_DESCRIPTION_BYTES = 4096
_WORDS = {
    cache: name.removeprefix("TORCH_CACHE_").lower()
    for name, cache in TorchCache.items()
    if cache != TorchCache.TORCH_CACHE_UNSPECIFIED
}
_KEY = re.compile(rf"[ -~]{{1,{LONGEST_KEY}}}")
# A signature of the same key for anything else is none of an entry.
_TITLE = b"compilefarm cache entry v1\n"


def word_of_cache(cache: TorchCache.ValueType) -> str:
    """Returns the word of a cache, as in paths and metrics.

    Raises:
        InvalidRequest: this release knows no such cache.
    """
    word = _WORDS.get(cache)
    if word is None:
        raise InvalidRequest(f"there is no cache {cache}: the client is newer than the farm, which has to be upgraded")
    return word


def is_named_by_content(cache: TorchCache.ValueType) -> bool:
    """Returns whether the key of each entry of a cache is the digest of its bytes."""
    return cache == TorchCache.TORCH_CACHE_MEGA_PART


def is_rewritten(cache: TorchCache.ValueType) -> bool:
    """Returns whether something else is written under the same key of a cache again and again."""
    return cache == TorchCache.TORCH_CACHE_DYNAMO_PGO


def sendable_key(text: str) -> str:
    """Returns a key of torch's as the wire takes it: itself, or its digest where it is too long or not plain text."""
    return text if _KEY.fullmatch(text) else f"sha256:{digest_of(text.encode(errors='surrogatepass'))}"


def check_key(text: str) -> str:
    """Returns `text` if it can be the key of an entry.

    Raises:
        InvalidRequest: it cannot.
    """
    if _KEY.fullmatch(text) is None:
        raise InvalidRequest(f"the key of a cache entry has 1 to {LONGEST_KEY} printable characters of ASCII")
    return text


def check_entry(entry: CacheEntry, *, max_bytes: int) -> CacheEntry:
    """Returns an entry that a caller describes, if it can be one.

    Raises:
        InvalidRequest: it cannot, or is larger than the limit.
    """
    word_of_cache(entry.cache)
    check_key(entry.key)
    check_digest(entry.digest)
    if is_named_by_content(entry.cache) and entry.key != entry.digest:
        raise InvalidRequest("the key of a part of a bundle is the sha256 of its bytes")
    if entry.ByteSize() > LONGEST_DESCRIPTION_BYTES:
        raise InvalidRequest(f"the description of a cache entry has at most {LONGEST_DESCRIPTION_BYTES} bytes")
    if not 0 <= entry.size_bytes <= max_bytes:
        raise InvalidRequest(f"a cache entry of {entry.size_bytes} bytes: from 0 to {max_bytes} are allowed")
    return entry


def describe(content: bytes, *, cache: TorchCache.ValueType, key: str) -> CacheEntry:
    """Returns the description of an entry, unsigned."""
    return CacheEntry(cache=cache, key=sendable_key(key), digest=digest_of(content), size_bytes=len(content))


def signed_content(entry: CacheEntry) -> bytes:
    """Returns the bytes that a signature of an entry covers: its names, its digest and its size."""
    covered = CacheEntry(cache=entry.cache, key=entry.key, digest=entry.digest, size_bytes=entry.size_bytes)
    return _TITLE + covered.SerializeToString(deterministic=True)
