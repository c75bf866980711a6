"""Frames of HTTP/2, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

# RFC 9113, 4.1, 6.2, 6.5 and 6.10; RFC 7541, 6.1 and appendix A: entry 15 is "accept-charset", without a value.
_HEADERS, _SETTINGS, _CONTINUATION, _END_HEADERS, _END_STREAM, _ACKNOWLEDGED = 1, 4, 9, 4, 1, 1
_ACCEPT_CHARSET = b"\x8f"
_ENTRIES = 12_000
_LARGEST_FRAME = 16_384


def frame(kind: int, *, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


# What a client begins with.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = frame(_SETTINGS)
ACKNOWLEDGED = frame(_SETTINGS, flags=_ACKNOWLEDGED)


def call(*, method: bytes, stream: int = 1, metadata: Mapping[bytes, bytes] = MappingProxyType({})) -> bytes:
    """A call without a request."""
    return frame(_HEADERS, flags=_END_HEADERS | _END_STREAM, stream=stream, content=_said(method, metadata))


def calls_with_metadata(count: int, *, method: str) -> Iterator[bytes]:
    """Calls whose metadata names an entry of HTTP/2's tables thousands of times."""
    said = _said(method.encode(), {})
    for number in range(count):
        content = said + _ACCEPT_CHARSET * _ENTRIES
        yield frame(_HEADERS, flags=_END_HEADERS, stream=2 * number + 1, content=content)


def calls_with_a_long_entry(count: int, *, method: str) -> Iterator[bytes]:
    """Calls whose metadata has one entry, which needs a second frame."""
    # RFC 7541, 5.1: its length in seven bits, and what goes beyond them.
    said = _said(method.encode(), {}) + b"\x00\x03x-a" + b"\x7f\xa1\x9b\x01" + b"x" * 20_000
    for number in range(count):
        stream = 2 * number + 1
        first = frame(_HEADERS, flags=_END_STREAM, stream=stream, content=said[:_LARGEST_FRAME])
        yield first + frame(_CONTINUATION, flags=_END_HEADERS, stream=stream, content=said[_LARGEST_FRAME:])


def _said(method: bytes, metadata: Mapping[bytes, bytes]) -> bytes:
    named = {
        b":method": b"POST", b":scheme": b"http", b":path": method, b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers", **metadata,
    }  # fmt: skip
    return b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in named.items())
