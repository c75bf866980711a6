"""Interceptors before all services: they name requests, authenticate callers, and turn exceptions into statuses that
show strangers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from compilefarm.core.errors import (
    ESTIMATED_WAIT_KEY,
    REASON_KEY,
    RETRY_AFTER_KEY,
    Busy,
    FarmError,
    InvalidRequest,
    TooSlow,
)
from compilefarm.core.metadata import REQUEST_KEY
from compilefarm.core.wire_fields import fields_of
from compilefarm.service.allowances import Add
from compilefarm.service.authenticators import AnonymousAuthenticator, Authenticator, with_key_formats
from compilefarm.service.call_limits import CallLimits
from compilefarm.service.callers import current_caller, enter
from compilefarm.service.clock import Clock
from compilefarm.service.fair_semaphore import FairSemaphore
from compilefarm.service.grpc_types import Context, Handler
from compilefarm.service.heavy_work import HeavyWork
from compilefarm.service.incidents import incident
from compilefarm.service.log_context import name_request
from compilefarm.service.pace import Pace
from compilefarm.service.parsing import PIECE_BYTES, merge_in_pieces
from compilefarm.service.refusals import is_excessive, refuse_metadata, refuse_unknown_method
from compilefarm.service.request_sizes import check_request_size

# Receives what a call is about: a request, or a stream of them. By `context.read`: the iterator that gRPC offers as
# well is in a circle with the call once it is used, so that calls would stay until Python looks for circles, which it
# does seldom.
Receive = Callable[..., AbstractAsyncContextManager[Any]]
# Sends a serialized message to the other end.
Send = Callable[[bytes], Awaitable[None]]
# Has a request answered, and sends what is answered.
Respond = Callable[[Any, Context, Send], Awaitable[None]]

# Details travel in a header, which gRPC limits to 8 KiB, percent-encoded.
_MAX_DETAIL_BYTES = 2000
# Of a message of a stream: what it is of, where it belongs, and bytes.
_MOST_FIELDS = 8


def interceptors(
    authenticator: Authenticator, *, clock: Clock, heavy: HeavyWork, call_limits: CallLimits
) -> list[grpc.aio.ServerInterceptor]:
    """What all calls of a server pass, in that order.

    Args:
        authenticator: tells who calls.
        clock: time.
        heavy: parses large requests.
        call_limits: how much one address and one caller may have going on.
    """
    return [
        MetadataInterceptor(call_limits),
        RequestIdInterceptor(),
        GuardInterceptor(authenticator, clock=clock, heavy=heavy, call_limits=call_limits),
    ]


class MetadataInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls with more metadata than clients send, before anything looks through it, and has their connections
    ended at once. A byte names an entry that HTTP/2 knows, and gRPC hands over what a frame of 16 KiB names, also of
    strangers, whatever its limit for metadata says: that takes megabytes, and ten milliseconds of a processor. So does
    an entry of megabytes.

    Args:
        call_limits: are told of the connection.
    """

    def __init__(self, call_limits: CallLimits) -> None:
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(partial(_refuse_metadata, call_limits))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if is_excessive(handler_call_details.invocation_metadata or ()):
            return self._refusal
        return await continuation(handler_call_details)


async def _refuse_metadata(call_limits: CallLimits, _contents: AsyncIterator[bytes], context: Context) -> None:
    await refuse_metadata(call_limits, context)


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates whoever calls, before the request is so much as received. Ends a call with the status of the
    FarmError that this or the handler raised, the message as details and the reason in the trailing metadata; with
    INTERNAL and an incident number for any other error; with INVALID_ARGUMENT if the request cannot be parsed.

    What is received and sent is kept to a pace: a call whose other end is too slow is ended.

    Args:
        authenticator: tells who calls.
        clock: time.
        heavy: parses large requests.
        call_limits: how much one address and one caller may have going on.
    """

    def __init__(
        self, authenticator: Authenticator, *, clock: Clock, heavy: HeavyWork, call_limits: CallLimits
    ) -> None:
        self._authenticator = authenticator
        self._call_limits = call_limits
        self._clock = clock
        self._heavy = heavy
        # By method. Of these there are no more than the services have.
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return _unknown_method(self._call_limits)
            self._guarded[method] = self._guarding(handler, method=method)
        return self._guarded[method]

    def _guarding(self, handler: Handler, *, method: str) -> Handler:
        is_health = method.startswith("/grpc.health.")
        # Health is for those who watch over processes and have no token.
        authenticator = AnonymousAuthenticator() if is_health else self._authenticator
        guarded = _GuardedMethod(
            name=method, authenticator=authenticator, call_limits=self._call_limits, is_health=is_health
        )
        return _guard(handler, method=guarded, clock=self._clock, heavy=self._heavy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuardedMethod:
    """A method, and who may call it how often."""

    name: str
    authenticator: Authenticator
    call_limits: CallLimits
    is_health: bool

    @contextmanager
    def serving(self, context: Context) -> Iterator[Add]:
        """Lets a call in, and has it counted; yields what counts the bytes of its request."""
        with self.call_limits.counting(context.peer(), is_health=self.is_health):
            caller = with_key_formats(self.authenticator.authenticate(context, method=self.name), context)
            enter(caller)
            limits = self.call_limits
            requests = limits.health_requests if self.is_health else limits.requests
            with requests.using(caller.account) as add:
                yield add


class RequestIdInterceptor(grpc.aio.ServerInterceptor):
    """Names each request for the log, as its client does. gRPC asks its interceptors in the task that then serves the
    call, so the name is known to all that is done for it.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        metadata = handler_call_details.invocation_metadata or ()
        name_request(next((str(value) for name, value in metadata if name == REQUEST_KEY), ""))
        return await continuation(handler_call_details)


def _unknown_method(call_limits: CallLimits) -> Handler:
    async def refuse(_contents: AsyncIterator[bytes], context: Context) -> None:
        await refuse_unknown_method(call_limits, context)

    unknown: Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return unknown


def _guard(handler: Handler, *, method: _GuardedMethod, clock: Clock, heavy: HeavyWork) -> Handler:
    # Only this table knows the four kinds of calls; `behaviour` is what a servicer has written. On the wire a single
    # request, or answer, is a stream of one: taken as that, it is received after the caller was let in, and moves no
    # slower than it may. gRPC itself would hold any number of halves, and of answers that nobody takes, in memory.
    respond, behaviour = {
        (False, False): (_respond_once, handler.unary_unary),
        (False, True): (_respond, handler.unary_stream),
        (True, False): (_respond_once, handler.stream_unary),
        (True, True): (_respond, handler.stream_stream),
    }[handler.request_streaming, handler.response_streaming]
    assert handler.request_deserializer is not None, "generated code always has one"
    assert handler.response_serializer is not None, "generated code always has one"
    parse = handler.request_deserializer
    call_limits = method.call_limits
    receiving = call_limits.health_receiving if method.is_health else call_limits.receiving
    check = partial(check_request_size, method.name)
    receive: Receive = (
        partial(_receive_stream, check=check, parse=parse, semaphore=call_limits.streaming, clock=clock)
        if handler.request_streaming
        else partial(_receive_one, check=check, parse=parse, semaphore=receiving, clock=clock, heavy=heavy)
    )
    serialize = partial(_serialize, serialize=handler.response_serializer)
    answer = _answer(
        receive=receive,
        respond=partial(respond, behaviour=behaviour, serialize=serialize),
        method=method,
        clock=clock,
    )
    # Without a deserializer gRPC hands over the bytes, and takes them without a serializer.
    guarded: Handler = grpc.stream_stream_rpc_method_handler(_refusing(answer, method=method.name))
    return guarded


def _answer(
    *, receive: Receive, respond: Respond, method: _GuardedMethod, clock: Clock
) -> Callable[[Context], Awaitable[None]]:
    async def answer(context: Context) -> None:
        with method.serving(context) as add:
            async with receive(context, add=add) as request:
                pace = Pace(clock=clock)
                await respond(
                    request, context, partial(_send, context=context, pace=pace, call_limits=method.call_limits)
                )

    return answer


async def _respond_once(
    request: Any, context: Context, send: Send, *, behaviour: Any, serialize: Callable[[Any], bytes]
) -> None:
    await send(serialize(await behaviour(request, context)))


async def _respond(
    request: Any, context: Context, send: Send, *, behaviour: Any, serialize: Callable[[Any], bytes]
) -> None:
    async with aclosing(behaviour(request, context)) as responses:
        async for response in responses:
            content = serialize(response)
            # In memory it takes several times as much as its bytes.
            del response
            await send(content)


def _serialize(response: Any, *, serialize: Callable[[Any], bytes]) -> bytes:
    # A handler may have serialized it itself.
    return response if isinstance(response, bytes) else serialize(response)


async def _send(content: bytes, *, context: Context, pace: Pace, call_limits: CallLimits) -> None:
    """Sends a message, which counts until it was taken."""
    with call_limits.answers.using(current_caller().account) as add:
        add(len(content))
        try:
            await pace.wait(context.write(content))
        except grpc.aio.InternalError:
            # Whoever asked has gone, as gRPC finds out when it writes. Otherwise it cancels what serves the call.
            raise asyncio.CancelledError from None
        except TooSlow:
            # gRPC keeps what was not taken, and how the call ended, for as long as there is a connection.
            call_limits.end_connection(context.peer(), because="does not take what it asked for")
            raise
    pace.note(len(content))


def _refusing(serve: Callable[[Context], Awaitable[None]], *, method: str) -> Callable[[Any, Context], Any]:
    """Translates exceptions into statuses that show strangers nothing.

    gRPC keeps what it raises then in a circle with the call. So it is raised where no frame knows the request or the
    error: they would stay in memory until Python looks for circles, which it does seldom.
    """

    async def answer(_contents: Any, context: Context) -> Any:
        try:
            return await serve(context)
        except FarmError as error:
            refusal = _refusal_of(error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - logged with its traceback by `incident`
            refusal = _refusal_of(incident(error, during=method))
        try:
            return await context.abort(*refusal)
        except grpc.aio.InternalError:
            # Nothing can be said after an answer of which nothing was taken, nor to one who has gone.
            raise asyncio.CancelledError from None

    return answer


def _refusal_of(error: FarmError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Status, details and trailing metadata. The error forgets the frames that it came through."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    told = [(REASON_KEY, error.reason)]
    if isinstance(error, Busy):
        told.append((RETRY_AFTER_KEY, f"{error.retry_after_seconds:.1f}"))
        told.append((ESTIMATED_WAIT_KEY, f"{error.estimated_wait_seconds:.1f}"))
    return grpc.StatusCode[error.status], _shorten(str(error)), tuple(told)


def _shorten(text: str) -> str:
    content = text.encode()
    if len(content) <= _MAX_DETAIL_BYTES:
        return text
    return content[:_MAX_DETAIL_BYTES].decode(errors="ignore") + " ..."


@contextmanager
def _refusing_malformed_requests() -> Iterator[None]:
    try:
        yield
    except DecodeError:
        raise InvalidRequest("the request cannot be parsed: it is no message of this kind, or cut off") from None


def _read_one(content: bytes, *, parse: Callable[[bytes], Any]) -> Any:
    with _refusing_malformed_requests():
        if len(content) <= PIECE_BYTES:
            return parse(content)
        request = parse(b"")
        merge_in_pieces(request, content)
        return request


def _read_piece(content: bytes, *, parse: Callable[[bytes], Any]) -> Any:
    """One message of a stream: these have few fields, none of which is a list, and are parsed at once."""
    with _refusing_malformed_requests():
        if len(list(islice(fields_of(content, 0, len(content)), _MOST_FIELDS + 1))) > _MOST_FIELDS:
            raise InvalidRequest(
                f"a message of a stream has at most {_MOST_FIELDS} fields: send another for what follows"
            )
        return parse(content)


@asynccontextmanager
async def _receive_one(
    context: Context,
    *,
    add: Add,
    check: Callable[[int], None],
    parse: Callable[[bytes], Any],
    semaphore: FairSemaphore,
    clock: Clock,
    heavy: HeavyWork,
) -> AsyncIterator[Any]:
    account = current_caller().account
    async with semaphore.acquired(account):
        content = await _read(context, pace=Pace(clock=clock))
    if content is None:
        raise InvalidRequest("nothing was sent: the call has one request")
    add(len(content))
    check(len(content))
    work = partial(_read_one, content, parse=parse)
    request = await heavy.run(work, size_bytes=len(content), account=account)
    # The bytes go now, not when the call is answered.
    del content, work
    yield request


@asynccontextmanager
async def _receive_stream(
    context: Context,
    *,
    add: Add,
    check: Callable[[int], None],
    parse: Callable[[bytes], Any],
    semaphore: FairSemaphore,
    clock: Clock,
) -> AsyncIterator[Any]:
    # Its messages are counted by whoever keeps them.
    del add
    async with semaphore.acquired(current_caller().account):
        yield _read_stream(context, check=check, parse=parse, clock=clock)


async def _read_stream(
    context: Context, *, check: Callable[[int], None], parse: Callable[[bytes], Any], clock: Clock
) -> AsyncIterator[Any]:
    pace = Pace(clock=clock)
    while (content := await _read(context, pace=pace)) is not None:
        pace.note(len(content))
        check(len(content))
        yield _read_piece(content, parse=parse)


async def _read(context: Context, *, pace: Pace) -> bytes | None:
    """The next message; None at the end."""
    content = await pace.wait(context.read())
    return None if content is grpc.aio.EOF else content
