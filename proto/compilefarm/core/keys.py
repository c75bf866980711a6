"""The key of a job: a digest of all that decides the result of a compile, except the hints, which choose among
variants.

It is an ordered list of named parts, each with a digest of its own, so that a miss can be explained by naming the
parts that differ. The service computes it from the parsed request; a client's word is never taken for it.

A key reads `<first 16 digits of the graph's digest>-<digest of all parts>`: artifacts of one graph lie together in the
store, so the stored key nearest to a miss is found by its prefix.

A format says which parts there are. Ends of different releases use the highest that both know; where they share none,
`find_foreign_parts` tells by the names of parts whether an artifact is for a job all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import Message

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.job_pb2 import Job

PART_NAMES = ("graph", "inputs", "symbols", "options", "ambient", "environment")
# Names of the parts by format, the newest last. There is a new one whenever equal requests must no longer find what
# older services stored under the same parts; an older one goes when what was stored under it may be wrong. So it does
# when a fault of generated code is mended here: no part says by which rules it was made
# (tests/graph/test_rules_of_generated_code.py). What was stored under 3 may lack assertions on indices, under 4 on
# results of operators.
FORMATS: Mapping[int, tuple[str, ...]] = {5: PART_NAMES}
# That of ends that name none: they are older than this choice.
UNNAMED_FORMAT = 3
# Digests of a part that says nothing: no messages, or an empty one.
_NOTHING = (hashlib.sha256().hexdigest(), hashlib.sha256(bytes(8)).hexdigest())
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
        format: number of the format.
    """

    text: str
    parts: tuple[Part, ...]
    format: int


def newest_format() -> int:
    """Returns the number of the format in which this release makes keys."""
    return max(FORMATS)


def choose_format(known: Collection[int]) -> int:
    """Returns the highest format that both ends know, or this end's own if they share none.

    Args:
        known: to the other end; empty if it names none.
    """
    shared = FORMATS.keys() & set(known or (UNNAMED_FORMAT,))
    return max(shared, default=newest_format())


def key_of(job: Job, *, format: int | None = None) -> Key:
    """Computes the key of a job.

    Args:
        job: the job.
        format: one of FORMATS; None: the newest.

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
    number = newest_format() if format is None else format
    parts = tuple(Part(name=name, digest=_digest_of_field(job, name)) for name in FORMATS[number])
    return Key(text=_text_of(parts, format=number), parts=parts, format=number)


def find_foreign_parts(text: str, *, format: int, parts: Iterable[Part], job: Job) -> list[str] | None:
    """Returns the names of the parts in which a key of another end differs from a job; none if it is the job's key.

    A part that only one end knows does not tell them apart if it says nothing.

    Args:
        text: the key.
        format: in which the other end made it.
        parts: that the other end says it made it of.
        job: the job.

    Returns:
        None if nothing can be said: the key is of an older format than any known, or not made of these parts.
    """
    if format in FORMATS:
        known = key_of(job, format=format)
        return [] if known.text == text else _differing(known.parts, parts) or None
    theirs = tuple(parts)
    if format < newest_format() or not theirs or _text_of(theirs, format=format) != text:
        return None
    return _differing(key_of(job).parts, theirs)


def is_key(text: str) -> bool:
    """Returns whether `text` has the form of a whole key."""
    return _KEY.fullmatch(text) is not None


def _differing(ours: Iterable[Part], theirs: Iterable[Part]) -> list[str]:
    our_digests, their_digests = ({part.name: part.digest for part in parts} for parts in (ours, theirs))
    return [
        name
        for name in {**our_digests, **their_digests}
        if our_digests.get(name) != their_digests.get(name)
        and not {our_digests.get(name, _NOTHING[0]), their_digests.get(name, _NOTHING[0])} <= set(_NOTHING)
    ]


def _text_of(parts: tuple[Part, ...], *, format: int) -> str:
    whole = hashlib.sha256(f"compilefarm key {format}\n".encode())
    for part in parts:
        whole.update(f"{part.name} {part.digest}\n".encode())
    return f"{parts[0].digest[:16]}-{whole.hexdigest()}"


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
