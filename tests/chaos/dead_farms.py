"""Addresses at which there is no farm, or none that works. Each counts who comes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from compilefarm.client.testing import FarmServicer
from compilefarm.client.testing import serving as serving_fake

_GARBAGE_BYTES = 4096


@dataclass
class DeadFarm:
    """An address.

    Attributes:
        address: it.
        visits: how often somebody has come: connections, or where those are made, calls.
    """

    address: str
    visits: int = 0


@contextmanager
def nobody() -> Iterator[DeadFarm]:
    """Connections are refused."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = _address_of(taken)
    yield DeadFarm(address)


@contextmanager
def unanswered() -> Iterator[DeadFarm]:
    """Nothing answers at all, as behind a firewall: the queue of connections is full, so that the kernel drops more."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as clients:
        for _ in range(2):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield DeadFarm(_address_of(listening))


@contextmanager
def _tcp(talk: Callable[[socket.socket], None]) -> Iterator[DeadFarm]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            farm.visits += 1
            with contextlib.suppress(OSError):
                talk(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        farm = DeadFarm(_address_of(server.socket))
        thread = threading.Thread(target=server.serve_forever, name="dead farm")
        thread.start()
        try:
            yield farm
        finally:
            server.shutdown()
            thread.join()


def black_hole() -> AbstractContextManager[DeadFarm]:
    """Takes everything and says nothing."""

    def talk(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    return _tcp(talk)


def noise() -> AbstractContextManager[DeadFarm]:
    """Random bytes instead of HTTP/2."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(random.Random(0).randbytes(_GARBAGE_BYTES))
        while connection.recv(1 << 16):
            pass

    return _tcp(talk)


def web_server() -> AbstractContextManager[DeadFarm]:
    """Speaks HTTP/1."""

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    return _tcp(talk)


class _Foreign(grpc.GenericRpcHandler):
    def __init__(self, answer: Callable[[], bytes]) -> None:
        self.farm = DeadFarm("")
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        self.farm.visits += 1
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answer())


@contextmanager
def _foreign(answer: Callable[[], bytes]) -> Iterator[DeadFarm]:
    handler = _Foreign(answer)
    server = grpc.server(ThreadPoolExecutor(8), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    handler.farm.address = f"127.0.0.1:{port}"
    try:
        yield handler.farm
    finally:
        server.stop(grace=None).wait()


def foreign_service() -> AbstractContextManager[DeadFarm]:
    """Speaks gRPC, and answers every call with bytes that are no message."""
    return _foreign(lambda: os.urandom(_GARBAGE_BYTES))


def yes_sayer() -> AbstractContextManager[DeadFarm]:
    """Speaks gRPC, and answers every call with an empty message."""
    return _foreign(lambda: b"")


@contextmanager
def slow(seconds: float) -> Iterator[DeadFarm]:
    """A farm that takes that long to answer anything."""
    servicer = _Slow(seconds=seconds)
    with serving_fake(servicer) as address:
        servicer.farm.address = address
        yield servicer.farm


class _Slow(FarmServicer):
    def __init__(self, *, seconds: float) -> None:
        super().__init__()
        self.farm = DeadFarm("")
        self._seconds = seconds

    def FindMissing(self, request: Any, context: Any) -> Any:
        self.farm.visits += 1
        self.over.wait(self._seconds)
        return super().FindMissing(request, context)


@contextmanager
def stuck() -> Iterator[DeadFarm]:
    """A farm that is asked to compile and says nothing."""
    servicer = FarmServicer()
    farm = DeadFarm("")

    def hold() -> None:
        farm.visits += 1
        servicer.hold()

    servicer.before_compile = hold
    with serving_fake(servicer) as address:
        farm.address = address
        yield farm


def _address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"
