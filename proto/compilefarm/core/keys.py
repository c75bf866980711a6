"""The key: a digest of all that decides the result of a compile, but for the hints, which choose among its variants.

It is an ordered list of named parts, each with a digest of its own, so that a miss can be explained by naming the
parts that differ. The service computes it from the parsed request; a client's word is never taken for it.

A key reads `<first 16 digits of the graph's digest>-<digest of all parts>`: entries of one graph lie together, so the
nearest stored entry of a miss can be found by its beginning.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from google.protobuf.message import Message

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.job_pb2 import Job

# Changes whenever equal requests must no longer find what older services stored under the same parts.
KEY_FORMAT = 3
PART_NAMES = ("graph", "inputs", "symbols", "options", "ambient", "environment")
_KEY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A named part of a key and its digest."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The key of a job.

    Attributes:
        text: the key as users see it.
        parts: the parts it was made of, in order.
    """

    text: str
    parts: tuple[Part, ...]


def key_of(job: Job) -> Key:
    """Computes the key of a job.

    Raises:
        InvalidRequest: the job holds fields that this release does not know. They may decide the result, so a key
            made without them could be wrong.
    """
    known = Job()
    known.CopyFrom(job)
    # protobuf-python has no other quick way to find unknown fields at any depth.
    known.DiscardUnknownFields()
    if known.ByteSize() != job.ByteSize():
        raise InvalidRequest(
            "the request holds fields that this service does not know: the client is newer; upgrade the farm first"
        )
    parts = tuple(Part(name=name, digest=_digest_of_field(job, name)) for name in PART_NAMES)
    whole = hashlib.sha256(f"compilefarm key {KEY_FORMAT}\n".encode())
    for part in parts:
        whole.update(f"{part.name} {part.digest}\n".encode())
    return Key(text=f"{parts[0].digest[:16]}-{whole.hexdigest()}", parts=parts)


def is_key(text: str) -> bool:
    """Whether `text` is written as a whole key."""
    return _KEY.fullmatch(text) is not None


def _digest_of_field(job: Job, name: str) -> str:
    value = getattr(job, name)
    messages = [value] if isinstance(value, Message) else list(value)
    digest = hashlib.sha256()
    for message in messages:
        # Fields come in the order of their numbers and there are no maps on the wire, so equal content has equal
        # bytes. Were that ever to change between releases of protobuf, the price would be a miss, not a wrong hit.
        content = message.SerializeToString(deterministic=True)
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
