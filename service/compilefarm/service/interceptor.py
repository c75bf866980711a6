"""Turns what is raised behind the wire into what strangers may see: the one place that does."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from compilefarm.core.errors import REASON_KEY, RETRY_AFTER_KEY, Busy, FarmError, InvalidRequest
from compilefarm.service.incidents import incident

# Details travel in a header, which gRPC limits to 8 KiB, percent-encoded.
_MAX_DETAIL_BYTES = 2000

Handler = grpc.RpcMethodHandler[Any, Any]
Context = grpc.aio.ServicerContext[Any, Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call with the status of the FarmError that its handler raised, the message as details and the reason in
    the trailing metadata; with INTERNAL and an incident number for any other error; with INVALID_ARGUMENT if the
    request cannot be parsed.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        # None for a method that does not exist. The health and reflection services answer in their own way.
        if handler is None or not handler_call_details.method.startswith("/compilefarm."):
            return handler
        return _guard(handler, method=handler_call_details.method)


class _Unreadable:
    """Stands for a request that cannot be parsed: raising inside a deserializer would end the call as UNKNOWN."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


def _guard(handler: Handler, *, method: str) -> Handler:
    ...
