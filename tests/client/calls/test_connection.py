"""The connection to the farm: wrong addresses, silence, somebody else, forks, many threads."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection, open_channel
from compilefarm.client.testing import FakeClock, FarmServicer, serving
from compilefarm.core.errors import FarmError, InternalError, NotAFarm, Unreachable
from compilefarm.v1.compile_service_pb2 import CompileRequest
from tests.chaos.dead_farms import foreign_service
from tests.chaos.proxy import Fault, FaultProxy

FORKING = Path(__file__).with_name("forking.py")


def connect(address: str, *, clock: FakeClock | None = None, connect_timeout_seconds: float = 5.0) -> Connection:
    config = ClientConfig(address=address, connect_timeout_seconds=connect_timeout_seconds)
    return Connection(config, clock=clock or FakeClock())


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listener that does something with every connection until it is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            answer(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def speak_like_ssh(connection: socket.socket) -> None:
    with connection:
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        connection.recv(1000)


def hang_up(connection: socket.socket) -> None:
    connection.close()


@contextmanager
def http1_server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def other_grpc_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def refusal(connection: Connection) -> FarmError:
    with pytest.raises(FarmError) as caught:
        connection.stubs()
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize(
    "server", [http1_server, other_grpc_server, lambda: listening(speak_like_ssh)], ids=["http1", "grpc", "ssh"]
)
def test_somebody_else_answers(server: Callable[[], Iterator[str]]) -> None:
    with server() as address:
        error = refusal(connect(address))
    assert isinstance(error, NotAFarm)
    assert f"something else than a compile farm answers at {address}: check the address" in str(error)


@pytest.mark.parametrize("address", [free_address(), "no-such-host.invalid:7077"])
def test_nobody_answers(address: str) -> None:
    error = refusal(connect(address, connect_timeout_seconds=30))
    assert isinstance(error, Unreachable)
    assert address in str(error)


def test_somebody_hangs_up() -> None:
    with listening(hang_up) as address:
        assert isinstance(refusal(connect(address)), Unreachable)


def test_silence_costs_one_connect_budget_for_all_threads_and_graphs() -> None:
    clock = FakeClock()
    # The kernel completes the connection; nobody ever accepts it.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        connection = connect(address, clock=clock, connect_timeout_seconds=0.5)
        started = time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            errors = list(pool.map(lambda _: refusal(connection), range(100)))
        spent = time.monotonic() - started
    assert {type(error) for error in errors} == {Unreachable}
    assert f"nobody answers at {address} within 0.5 s" in str(errors[0])
    assert 0.4 < spent < 2


def test_an_address_is_left_alone_for_a_while_and_then_tried_again() -> None:
    clock = FakeClock()
    address = free_address()
    connection = connect(address, clock=clock)
    refusal(connection)
    with serving(FarmServicer(), address=address):
        clock.seconds += 29
        assert "the next attempt is in 1 s" in str(refusal(connection))
        clock.seconds += 2
        assert connection.stubs() is connection.stubs()
        connection.close()


def test_a_pod_that_asks_often_meanwhile_does_not_put_the_next_attempt_off() -> None:
    clock = FakeClock()
    address = free_address()
    connection = connect(address, clock=clock)
    for _ in range(4):
        error = refusal(connection)
        # As those do that go on without a farm, such as torch's caches.
        connection.give_up(error)
        clock.seconds += 9
    assert str(error).count("the next attempt is in 3 s") == str(error).count("attempt") == 1
    with serving(FarmServicer(), address=address):
        assert connection.stubs() is connection.stubs()
        connection.close()


def test_a_server_whose_answers_are_no_messages_is_left_alone() -> None:
    with foreign_service() as server:
        connection = connect(server.address)
        errors = [refusal(connection) for _ in range(3)]
    assert {type(error) for error in errors} == {InternalError}
    assert server.visits == 1


def test_a_connection_that_nothing_comes_through_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.client.connection._SECONDS_BETWEEN_PINGS", 0.2)
    monkeypatch.setattr("compilefarm.client.connection._PING_TIMEOUT_SECONDS", 0.2)
    servicer = FarmServicer()
    servicer.before_compile = servicer.hold
    with serving(servicer) as address:
        proxy = FaultProxy(address)
        with proxy.run(), ThreadPoolExecutor(1) as pool, closing(connect(proxy.address)) as connection:
            call = connection.stubs().compiles.Compile(CompileRequest(), timeout=300)
            assert servicer.held.wait(60)
            proxy.set_fault(Fault.BLACK_HOLE)
            with pytest.raises(grpc.RpcError) as caught:
                pool.submit(next, call).result(timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_line_that_was_given_up_is_not_used_for_a_while() -> None:
    clock = FakeClock()
    with serving(FarmServicer()) as address:
        connection = connect(address, clock=clock)
        stubs = connection.stubs()
        connection.give_up(Unreachable("gone"))
        assert "gone" in str(refusal(connection))
        clock.seconds += 31
        assert connection.stubs() is not stubs
        connection.close()


def test_twenty_threads_share_one_line() -> None:
    servicer = FarmServicer()
    with serving(servicer) as address:
        connection = connect(address)
        with ThreadPoolExecutor(20) as pool:
            made = list(pool.map(lambda _: connection.stubs(), range(200)))
        connection.close()
    assert {id(stubs) for stubs in made} == {id(made[0])}
    assert servicer.questions == 1


@pytest.mark.parametrize(
    ("scene", "support", "expected"),
    [
        ("before_first_call", None, "child: farm"),
        ("after_call", None, "child: farm"),
        ("during_call", None, "child: farm"),
        ("after_call", "0", "child: local"),
        ("imports_began_in_a_thread", None, "child: farm"),
        ("grpc_was_imported_before", None, "child: local"),
    ],
)
def test_a_forked_process_uses_the_farm_or_compiles_locally(scene: str, support: str | None, expected: str) -> None:
    servicer = FarmServicer()
    with serving(servicer) as address:
        environ = {} if support is None else {"GRPC_ENABLE_FORK_SUPPORT": support}
        # Another process serves the parent's and the child's calls: this one must not fork.
        done = subprocess.run(
            [sys.executable, FORKING, address, scene], env=environ, capture_output=True, text=True, timeout=60
        )
    assert done.stdout.splitlines() == [expected, "parent: farm"], done.stderr
    assert done.returncode == 0
    if expected == "child: local":
        assert "set GRPC_ENABLE_FORK_SUPPORT=1" in done.stderr


def test_a_compressed_answer_is_not_unpacked() -> None:
    def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return bytes(64 * 1024 * 1024)

    handlers = {"Lookup": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(
        ThreadPoolExecutor(1),
        handlers=[grpc.method_handlers_generic_handler("compilefarm.v1.CompileService", handlers)],
        options=[("grpc.max_send_message_length", -1)],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = open_channel(ClientConfig(address=f"127.0.0.1:{port}"))
    try:
        with pytest.raises(grpc.RpcError, match=r"Compression algorithm (not supported: gzip|'gzip' is disabled)"):
            channel.unary_unary("/compilefarm.v1.CompileService/Lookup")(b"", timeout=30)
    finally:
        channel.close()
        server.stop(None).wait()
