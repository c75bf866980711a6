"""Ways in which requests and request files come to be other than a client makes them."""

from __future__ import annotations

import hashlib
import struct
import zlib
from random import Random

from google.protobuf.message import DecodeError

from compilefarm.core.errors import UnusableRequestFile
from compilefarm.core.requests import pack_request, unpack_request
from compilefarm.v1.job_pb2 import Job

from .seeds import mutator

# request_file.proto: what a file begins with, and the digest that follows it.
_OUTLINE = struct.Struct("<8sIQ")
_START = _OUTLINE.size + hashlib.sha256().digest_size
_LONGEST_JUNK = 8
_MAX_BYTES = 1 << 16


def change_request(content: bytes, *, random: Random) -> bytes:
    """A request that says something else; bytes that are no request are damaged."""
    try:
        job = Job.FromString(content)
    except DecodeError:
        return damage(content, random=random)
    mutator(random).mutate(job)
    changed = job.SerializeToString()
    return changed if len(changed) <= _MAX_BYTES else content


def damage(content: bytes, *, random: Random) -> bytes:
    """Bytes of which some are missing, doubled or others."""
    start = random.randrange(len(content) + 1)
    end = random.choice((start, start + 1, start + random.randrange(_LONGEST_JUNK), len(content)))
    junk = random.choice((b"", random.randbytes(random.randrange(_LONGEST_JUNK)), content[start:end] * 2))
    return (content[:start] + junk + content[end:])[:_MAX_BYTES]


def change_file(content: bytes, *, random: Random) -> bytes:
    """A request file that was damaged, or that somebody made with care and a right digest."""
    way = random.randrange(3)
    if way == 0:
        return damage(content, random=random)
    try:
        request = unpack_request(content)
        packed = zlib.decompress(content[_START:])
    except (UnusableRequestFile, zlib.error):
        return damage(content, random=random)
    if way == 1:
        mutator(random).mutate(request.job)
        return pack_request(request) if not request.missing_digests() else content
    return _sealed(content, packed=zlib.compress(damage(packed, random=random)))


def _sealed(content: bytes, *, packed: bytes) -> bytes:
    magic, number, _ = _OUTLINE.unpack_from(content)
    outline = _OUTLINE.pack(magic, number, len(packed))
    return outline + hashlib.sha256(outline + packed).digest() + packed
