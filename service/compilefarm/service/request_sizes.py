"""How large a request of each method can be.

A method that takes a key or two is sent no megabytes: what is larger than its requests can be is refused before it is
parsed. So a method is bounded before anybody writes what it does with a request.
"""

from __future__ import annotations

from collections.abc import Mapping

from compilefarm.core.cache_entries import KEYS_PER_QUESTION, LONGEST_DESCRIPTION_BYTES, LONGEST_KEY
from compilefarm.core.digests import DIGEST_LENGTH
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.packages import MAX_CONTENT_BYTES, MOST_FURTHER_BYTES
from compilefarm.service.blob_service import MAX_DIGESTS
from compilefarm.service.uploads import MAX_CHUNK_BYTES

# Of a key, a name, and a few words.
_SMALL_BYTES = 16 * 1024
# Of a field: its number and its length.
_FIELD_BYTES = 8
_KEYS_BYTES = _SMALL_BYTES + KEYS_PER_QUESTION * (LONGEST_KEY + _FIELD_BYTES)
# A thousand graphs with a reason each, and a hundred self checks with a sentence each.
_REPORT_BYTES = 384 * 1024
# As large as a message may be at all: jobs, and manifests for a signer.
_ANY = None

_LARGEST: Mapping[str, int | None] = {
    "/compilefarm.v1.CompileService/Lookup": _ANY,
    "/compilefarm.v1.CompileService/Plan": _ANY,
    "/compilefarm.v1.CompileService/Compile": _ANY,
    "/compilefarm.v1.CompileService/Report": _REPORT_BYTES,
    "/compilefarm.v1.BlobService/FindMissing": _SMALL_BYTES + MAX_DIGESTS * (DIGEST_LENGTH + _FIELD_BYTES),
    "/compilefarm.v1.BlobService/Write": _SMALL_BYTES + MAX_CHUNK_BYTES,
    "/compilefarm.v1.CacheService/Put": LONGEST_DESCRIPTION_BYTES + _SMALL_BYTES + MAX_CHUNK_BYTES,
    "/compilefarm.v1.CacheService/FindMissingEntries": _KEYS_BYTES,
    "/compilefarm.v1.CacheService/RemoveEntries": _KEYS_BYTES,
    "/compilefarm.v1.PackageService/Publish": _SMALL_BYTES + MAX_CONTENT_BYTES + MOST_FURTHER_BYTES,
    "/compilefarm.v1.SignerService/Sign": _ANY,
}


def check_request_size(method: str, size_bytes: int) -> None:
    """Passes if a request of a method can be so large.

    Args:
        method: its path, as "/package.Service/Method".
        size_bytes: of the request; of one of several, if it is a stream.

    Raises:
        InvalidRequest: none is.
    """
    largest_bytes = _LARGEST.get(method, _SMALL_BYTES)
    if largest_bytes is not None and size_bytes > largest_bytes:
        raise InvalidRequest(
            f"a request of {size_bytes} bytes for {method.rpartition('/')[2]}: at most {largest_bytes} are allowed"
        )
