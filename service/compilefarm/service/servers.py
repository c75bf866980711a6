"""gRPC servers that no caller can end.

The loop in which gRPC for Python takes calls (releases such as 1.85: grpc/_cython/_cygrpc/aio/server.pyx.pxi,
`_server_main_loop`) takes the name of a method for UTF-8. Where it is none the loop ends, and with it the server, for
one call of a stranger. It looks at no name of a call for a method that was registered under it, so all methods are
registered, and calls for others are refused before the loop sees them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from compilefarm.service.call_limits import CallLimits
from compilefarm.service.refusals import is_excessive, refuse_metadata, refuse_unknown_method

# Of whatever a caller sends that is no UTF-8, gRPC writes all, with a traceback, and goes on. In earlier releases such
# a name of a method fails the call alone. Another traceback tells of each caller that goes away while it is answered.
_GRPC = logging.getLogger(cygrpc.__name__)
_OF_CALLERS = (
    "Invalid encoding on ",
    "Unexpected [UnicodeDecodeError] raised by servicer method ",
    "ExecuteBatchError raised in core by servicer method ",
)

_TAKES_NAMES_FOR_TEXT = hasattr(cygrpc.AioServer, "_make_request_call_future")


def make_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    options: Sequence[tuple[str, int]],
    call_limits: CallLimits,
) -> grpc.aio.Server:
    """A server without services.

    Args:
        interceptors: what all calls pass.
        options: of gRPC.
        call_limits: are told of calls for methods that there are not.
    """
    _GRPC.addFilter(_is_wanted)
    if _TAKES_NAMES_FOR_TEXT:
        return cast("grpc.aio.Server", _Server(interceptors=interceptors, options=options, call_limits=call_limits))
    return grpc.aio.server(interceptors=interceptors, options=options)


class _Server(_server.Server):
    """A server whose methods are all registered."""

    def __init__(
        self,
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, int]],
        call_limits: CallLimits,
    ) -> None:
        # As the class that it is derived from does it, which has a core of its own.
        self._loop = asyncio.get_running_loop()
        self._server = _Core(self._loop, None, (), tuple(interceptors), tuple(options), None)
        self._server.call_limits = call_limits

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Registers the methods of services."""
        for service in generic_rpc_handlers:
            assert isinstance(service, grpc.ServiceRpcHandler), "generated code adds whole services"
            # Since the code was generated for gRPC 1.62, too, it registers nothing.
            self._server.add_registered_method_handlers(service._method_handlers)  # type: ignore[attr-defined]


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # grpc has no types for it
    """What takes calls."""

    call_limits: CallLimits

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """The next call of a method. Of those without a registered one, which are None here, none ever comes."""
        if method is not None:
            future: asyncio.Future[Any] = super()._make_request_call_future(method)
            return future
        return asyncio.get_running_loop().create_task(self._refuse_unknown(), name="calls of unknown methods")

    async def _refuse_unknown(self) -> None:
        loop = asyncio.get_running_loop()
        refusing = set[asyncio.Task[None]]()
        while True:
            call = await self._request_call()
            task = loop.create_task(self._refuse(cygrpc._ServicerContext(call, None, None, loop)))
            refusing.add(task)
            task.add_done_callback(refusing.discard)

    async def _refuse(self, context: Any) -> None:
        try:
            # What interceptors do of other calls.
            if is_excessive(context.invocation_metadata() or ()):
                await refuse_metadata(self.call_limits, context)
            await refuse_unknown_method(self.call_limits, context)
        except (grpc.aio.AbortError, grpc.aio.BaseError):
            # It is refused, or whoever called has gone.
            return


def _is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_OF_CALLERS)
