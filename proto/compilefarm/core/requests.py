"""Requests as files (.cfreq): one job, and the tensors that its graph holds. request_file.proto says how they are laid
out.

Equal requests have equal files. What is read is checked against a digest, which notices cut and changed files, and held
to limits, which bound what a hostile file can take: twice MAX_FILE_BYTES, and what protobuf makes of MAX_JOB_BYTES.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import (
    DamagedRequestFile,
    IncompleteRequestFile,
    NewerRequestFile,
    NotARequestFile,
    TruncatedRequestFile,
    UnusableRequestFile,
)
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.request_file_pb2 import CompileArguments, RequestFileBlob, RequestFileHeader

SUFFIX = ".cfreq"
FORMAT = 1
# Of a file, and of its content once unpacked. The tensors that graphs hold are small; weights are inputs.
MAX_FILE_BYTES = 256 * 1024 * 1024
# Twice what a farm takes in one message.
MAX_JOB_BYTES = 8 * 1024 * 1024

# The first byte is no text and the last two are a line end, so that transfers as text are noticed.
_MAGIC = b"\x89CFREQ\r\n"
_OUTLINE = struct.Struct("<8sIQ")
_DIGEST_BYTES = hashlib.sha256().digest_size
_START = _OUTLINE.size + _DIGEST_BYTES
_SIZE = struct.Struct("<I")
_SHOWN_CHARACTERS = 80

_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job, ready to be sent.

    Attributes:
        job: the job.
        blobs: content by digest of the tensors that the graph holds: all of them, or none if they are kept elsewhere.
        arguments: how torch.compile was called; None if nobody said.
    """

    job: Job
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    arguments: CompileArguments | None = None

    def missing_digests(self) -> list[str]:
        """Digests of the tensors that the graph holds and `blobs` does not, each once."""
        held = dict.fromkeys(constant.digest for constant in self.job.graph.constants)
        return [digest for digest in held if digest not in self.blobs]


def write_request(request: Request, *, path: Path) -> None:
    """Writes a request to a file atomically.

    Raises:
        UnusableRequestFile: the file cannot be written, or it could not be read again.
    """
    content = pack_request(request)
    # Beside it: a file can be renamed within one file system only.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        try:
            unfinished.write_bytes(content)
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnusableRequestFile(f"{path} cannot be written: {error.strerror}") from error


def read_request(path: Path) -> Request:
    """Reads a request from a file.

    Raises:
        UnusableRequestFile: it cannot be read; its subclasses tell why.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnusableRequestFile(f"{path} cannot be read: {error.strerror}") from error
    try:
        return unpack_request(content)
    except UnusableRequestFile as error:
        raise type(error)(f"{path}: {error}") from None


def pack_request(request: Request) -> bytes:
    """Returns a request as the content of a file.

    Raises:
        IncompleteRequestFile: `blobs` holds some of the tensors, but not all.
        UnusableRequestFile: the request is larger than what can be read again.
    """
    missing = request.missing_digests()
    if missing and request.blobs:
        raise _incomplete(missing)
    job = request.job.SerializeToString(deterministic=True)
    # A pod pays for what it imports, and most write no request.
    from importlib.metadata import version

    header = RequestFileHeader(farm_version=version("compilefarm"), holds_blobs=not missing)
    if request.arguments is not None:
        header.arguments.CopyFrom(request.arguments)
    messages = [header.SerializeToString(deterministic=True), job]
    for digest in sorted({constant.digest for constant in request.job.graph.constants} & request.blobs.keys()):
        messages.append(RequestFileBlob(digest=digest, content=request.blobs[digest]).SerializeToString())
    content = b"".join(part for message in messages for part in (_SIZE.pack(len(message)), message))
    if len(job) > MAX_JOB_BYTES or len(content) > MAX_FILE_BYTES:
        raise UnusableRequestFile(
            f"the request is too large for a file: its job has {len(job)} bytes of at most {MAX_JOB_BYTES}, with its"
            f" tensors {len(content)} of at most {MAX_FILE_BYTES}"
        )
    packed = zlib.compress(content)
    outline = _OUTLINE.pack(_MAGIC, FORMAT, len(packed))
    return outline + hashlib.sha256(outline + packed).digest() + packed


def unpack_request(content: bytes) -> Request:
    """Reads a request from the content of a file.

    Raises:
        UnusableRequestFile: it is none; the subclasses tell why.
    """
    messages = _split(_unpack(_checked(memoryview(content))))
    header = _parse(RequestFileHeader, next(messages, None), what="header")
    packed_job = next(messages, None)
    if packed_job is not None and len(packed_job) > MAX_JOB_BYTES:
        raise DamagedRequestFile(f"its job has {len(packed_job)} bytes; at most {MAX_JOB_BYTES} are taken")
    job = _parse(Job, packed_job, what="job")
    arguments = header.arguments if header.HasField("arguments") else None
    request = Request(job=job, blobs=_read_blobs(messages, job=job), arguments=arguments)
    missing = request.missing_digests()
    if missing and (header.holds_blobs or request.blobs):
        raise _incomplete(missing)
    return request


def _checked(content: memoryview) -> memoryview:
    """The packed content, which is what was written."""
    if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
        raise NotARequestFile(f"this is no request file ({SUFFIX}), or it was transferred as text")
    if len(content) > MAX_FILE_BYTES:
        raise DamagedRequestFile(f"it has more than {MAX_FILE_BYTES} bytes, the most that a request file may have")
    if len(content) < _START:
        raise TruncatedRequestFile(f"it ends after {len(content)} bytes, before its content begins; get it again")
    _, number, size_bytes = _OUTLINE.unpack_from(content)
    if number > FORMAT:
        raise NewerRequestFile(f"it has format {number}, this release reads up to {FORMAT}; upgrade Compilefarm")
    packed = content[_START:]
    if len(packed) < size_bytes:
        raise TruncatedRequestFile(f"it ends after {len(packed)} of {size_bytes} bytes of content; get it again")
    digest = hashlib.sha256(content[: _OUTLINE.size])
    digest.update(packed)
    if len(packed) > size_bytes or digest.digest() != content[_OUTLINE.size : _START]:
        raise DamagedRequestFile("its content is not what was written; get it again")
    return packed


def _unpack(packed: memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(packed, MAX_FILE_BYTES)
    except zlib.error as error:
        raise DamagedRequestFile(f"its content cannot be unpacked: {error}") from None
    if not stream.eof or stream.unused_data:
        raise DamagedRequestFile(f"its content is larger than {MAX_FILE_BYTES} bytes, or it has no end")
    return content


def _split(content: bytes) -> Iterator[bytes]:
    """Yields the messages of the content."""
    position = 0
    while position < len(content):
        end = position + _SIZE.size
        if end <= len(content):
            end += _SIZE.unpack_from(content, position)[0]
        if end > len(content):
            raise DamagedRequestFile("a message in it is longer than its content")
        yield content[position + _SIZE.size : end]
        position = end


def _parse(kind: type[_Message], packed: bytes | None, *, what: str) -> _Message:
    if packed is None:
        raise DamagedRequestFile(f"it has no {what}")
    try:
        return kind.FromString(packed)
    except DecodeError:
        raise DamagedRequestFile(f"its {what} is not what it should be: no release writes such a file") from None


def _read_blobs(messages: Iterator[bytes], *, job: Job) -> dict[str, bytes]:
    wanted = {constant.digest for constant in job.graph.constants}
    blobs: dict[str, bytes] = {}
    for message in messages:
        blob = _parse(RequestFileBlob, message, what="tensor")
        # Only what the graph names, and once: more would be memory for nothing.
        if blob.digest not in wanted or blob.digest in blobs or digest_of(blob.content) != blob.digest:
            raise DamagedRequestFile(
                f"it holds bytes that are not those of a tensor of its graph: {_shown(blob.digest)}"
            )
        blobs[blob.digest] = blob.content
    return blobs


def _incomplete(missing: list[str]) -> IncompleteRequestFile:
    return IncompleteRequestFile(
        f"{len(missing)} of the tensors that the graph holds are missing, the first is {_shown(missing[0])}; save the"
        " request with all of them, or with none"
    )


def _shown(digest: str) -> str:
    return ascii(digest[:_SHOWN_CHARACTERS])
