"""Adds the token of the client to every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from compilefarm.client.trust import Trust
from compilefarm.core.errors import NotAuthenticated
from compilefarm.core.metadata import BEARER, TOKEN_KEY

_Continuation = Callable[[grpc.ClientCallDetails, Any], Any]


class _Details(NamedTuple):
    """What gRPC knows of a call; it looks for these names."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call of a channel.

    gRPC has credentials for calls of its own, which it sends over TLS only; a farm on this machine needs none.

    Args:
        trust: where the token comes from. A file is read at every call, so that a new token in it is used at once.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def intercept_unary_unary(self, continuation: _Continuation, details: Any, request: Any) -> Any:
        return continuation(self._named(details), request)

    def intercept_unary_stream(self, continuation: _Continuation, details: Any, request: Any) -> Any:
        return continuation(self._named(details), request)

    def intercept_stream_unary(self, continuation: _Continuation, details: Any, request_iterator: Any) -> Any:
        return continuation(self._named(details), request_iterator)

    def intercept_stream_stream(self, continuation: _Continuation, details: Any, request_iterator: Any) -> Any:
        return continuation(self._named(details), request_iterator)

    def _named(self, details: Any) -> Any:
        shown = (TOKEN_KEY, f"{BEARER}{read_token(self._trust)}")
        return _Details(
            method=details.method,
            timeout=details.timeout,
            metadata=[*(details.metadata or ()), shown],
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )


def read_token(trust: Trust) -> str:
    """Returns the token, as it is at this moment.

    Raises:
        NotAuthenticated: its file cannot be read, or holds none.
    """
    if not trust.token_file:
        return trust.token
    try:
        token = Path(trust.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NotAuthenticated(f"the token in {trust.token_file} cannot be read ({why}): check the file") from None
    if not token.isprintable() or not token or " " in token:
        raise NotAuthenticated(f"{trust.token_file} does not hold a token: write one there, and nothing else")
    return token
