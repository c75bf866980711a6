"""Frames of HTTP/2, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

# RFC 9113, 4.1 and 6.2; RFC 7541, 6.1 and appendix A: entry 15 is "accept-charset", without a value.
_HEADERS, _SETTINGS, _END_HEADERS, _END_STREAM = 1, 4, 4, 1
_ACCEPT_CHARSET = b"\x8f"
_ENTRIES = 12_000


def frame(kind: int, *, flags: int = 0, stream: int = 0, content: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


# What a client begins with.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = frame(_SETTINGS)


def call(*, method: bytes, stream: int = 1, metadata: Mapping[bytes, bytes] = MappingProxyType({})) -> bytes:
    """A call without a request."""
    return frame(_HEADERS, flags=_END_HEADERS | _END_STREAM, stream=stream, content=_said(method, metadata))


def calls_with_metadata(count: int, *, method: str) -> Iterator[bytes]:
    """Calls whose metadata names an entry of HTTP/2's tables thousands of times."""
    said = _said(method.encode(), {})
    for number in range(count):
        content = said + _ACCEPT_CHARSET * _ENTRIES
        yield frame(_HEADERS, flags=_END_HEADERS, stream=2 * number + 1, content=content)


def _said(method: bytes, metadata: Mapping[bytes, bytes]) -> bytes:
    named = {
        b":method": b"POST", b":scheme": b"http", b":path": method, b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers", **metadata,
    }  # fmt: skip
    return b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in named.items())
