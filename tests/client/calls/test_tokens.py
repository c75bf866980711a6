"""A client that has to say who it is, against a real gateway that asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from compilefarm.client.config import ClientConfig, OnMiss
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime
from compilefarm.client.trust import Trust
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotAllowed, NotAuthenticated
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import serving_in_thread
from compilefarm.v1.blob_service_pb2 import FindMissingRequest, WriteRequest

DIGEST = "ab" * 32


@dataclass(frozen=True, kw_only=True)
class AskingFarm:
    """A farm that asks who calls, and the token that it knows."""

    address: str
    auth_file: Path
    token_file: Path

    def use(self, token: str, *, role: str = "read") -> None:
        """Has the farm know this token and no other, and the clients show it."""
        self.auth_file.write_text(
            f'[[callers]]\nname = "a"\nrole = "{role}"\ntokens = ["sha256:{digest_of(token.encode())}"]\n'
        )
        self.token_file.write_text(f"{token}\n")


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[AskingFarm]:
    auth_file, token_file = tmp_path / "callers.toml", tmp_path / "token"
    AskingFarm(address="", auth_file=auth_file, token_file=token_file).use("first")
    with serving_in_thread(config=GatewayConfig(listen="127.0.0.1:0", auth_file=str(auth_file))) as address:
        yield AskingFarm(address=address, auth_file=auth_file, token_file=token_file)


def connect(address: str, trust: Trust) -> Connection:
    return Connection(ClientConfig(address=address, trust=trust), clock=FakeClock())


def missing(connection: Connection) -> list[str]:
    with connection.calls():
        return list(connection.stubs().blobs.FindMissing(FindMissingRequest(digests=[DIGEST])).digests)


def test_a_token_lets_in(asking: AskingFarm) -> None:
    connection = connect(asking.address, Trust(token="first"))
    assert missing(connection) == [DIGEST]
    connection.close()


def test_a_token_in_a_file_may_be_replaced_while_a_line_is_open(asking: AskingFarm) -> None:
    connection = connect(asking.address, Trust(token_file=str(asking.token_file)))
    assert missing(connection) == [DIGEST]
    stubs = connection.stubs()
    asking.use("second-token")
    assert missing(connection) == [DIGEST]
    assert connection.stubs() is stubs
    connection.close()


def test_a_role_that_is_too_small_is_said_at_the_call(asking: AskingFarm) -> None:
    connection = connect(asking.address, Trust(token="first"))
    with pytest.raises(NotAllowed, match="caller 'a' has role 'read', and Write needs 'compile'"), connection.calls():
        connection.stubs().blobs.Write(iter([WriteRequest(digest=DIGEST, chunk=b"x")]))
    connection.close()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def strict_farm(asking: AskingFarm) -> Farm:
    dependencies = Dependencies(runtime=FakeRuntime())
    return Farm(asking.address, token_file=str(asking.token_file), on_failure="error", dependencies=dependencies)


REFUSED = pytest.mark.parametrize(
    ("token", "remedy"), [("", "set COMPILEFARM_TOKEN"), ("wrong", "does not know the token")]
)


@pytest.mark.parametrize("on_miss", ["wait", "local"])
@REFUSED
def test_a_refused_caller_is_told_and_goes_on(
    token: str, remedy: str, on_miss: OnMiss, asking: AskingFarm, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=ledger)
    farm = Farm(asking.address, token=token, on_miss=on_miss, dependencies=dependencies)
    assert farm.backend(FakeGraphModule(), [])()[0] == "local"
    assert [(record.outcome, record.reason) for record in ledger.records()] == [("fallback", "not_authenticated")]
    (line,) = (line for line in caplog.records if line.name == "compilefarm.client")
    assert line.levelname == "WARNING"
    assert remedy in line.getMessage()
    assert "wrong" not in caplog.text
    farm.close()


@pytest.mark.parametrize("settings", [{"on_miss": "error"}, {"on_failure": "error"}])
@REFUSED
def test_a_strict_caller_that_is_refused_is_told_by_an_exception(
    token: str, remedy: str, settings: dict[str, Any], asking: AskingFarm, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = FakeRuntime()
    farm = Farm(asking.address, token=token, dependencies=Dependencies(runtime=runtime), **settings)
    with pytest.raises(NotAuthenticated, match=remedy):
        farm.backend(FakeGraphModule(), [])
    assert runtime.local_compiles == 0
    assert "wrong" not in caplog.text
    farm.close()


def test_a_token_that_the_farm_no_longer_knows_costs_a_serving_pod_nothing_but_time(
    asking: AskingFarm, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    asking.use("first", role="compile")
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=ledger)
    farm = Farm(asking.address, token="first", dependencies=dependencies)
    # Graphs of a fake runtime are empty: the farm knows the caller, and says so.
    farm.backend(FakeGraphModule("before"), [])
    asking.use("second")
    assert farm.backend(FakeGraphModule("after"), [])()[0] == "local"
    assert [record.reason for record in ledger.records()] == ["invalid_request", "not_authenticated"]
    assert any("does not know the token" in record.getMessage() for record in warnings_in(caplog))
    farm.close()


class Stranger(grpc.GenericRpcHandler):
    """Some other service, which asks whoever comes to say who they are."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
            yield b""

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.fixture
def stranger() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Stranger()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.parametrize("on_miss", ["wait", "local"])
def test_a_stranger_that_asks_who_calls_is_told_of_and_the_pod_goes_on(
    on_miss: OnMiss, stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    farm = Farm(stranger, on_miss=on_miss, dependencies=Dependencies(runtime=FakeRuntime()))
    assert farm.backend(FakeGraphModule(), [])()[0] == "local"
    assert any(stranger in record.getMessage() for record in warnings_in(caplog))
    farm.close()


@pytest.mark.parametrize("settings", [{"on_miss": "error"}, {"on_failure": "error"}])
def test_a_strict_caller_is_told_of_a_stranger_by_an_exception(settings: dict[str, Any], stranger: str) -> None:
    farm = Farm(stranger, dependencies=Dependencies(runtime=FakeRuntime()), **settings)
    with pytest.raises(NotAuthenticated, match=stranger):
        farm.backend(FakeGraphModule(), [])
    farm.close()


@pytest.mark.parametrize("content", [None, "", "two words", b"\xff"])
def test_a_token_file_that_holds_no_token_is_named(
    content: str | bytes | None, asking: AskingFarm, tmp_path: Path
) -> None:
    asking.token_file.unlink()
    if content is not None:
        asking.token_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    farm = strict_farm(asking)
    with pytest.raises(NotAuthenticated, match=str(asking.token_file)):
        farm.backend(FakeGraphModule(), [])
    farm.close()


def test_a_token_file_that_vanishes_while_a_line_is_open_is_named(asking: AskingFarm) -> None:
    farm = strict_farm(asking)
    farm._connection.stubs()
    asking.token_file.unlink()
    # Encoding, waiting and reporting meet a connection that is there.
    with pytest.raises(NotAuthenticated, match="cannot be read"):
        farm.backend(FakeGraphModule(), [])
    farm.close()


def test_the_token_of_the_environment_is_used_unless_one_is_given(
    asking: AskingFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEFARM_TOKEN_FILE", str(asking.token_file))
    farm = Farm(asking.address)
    assert farm._connection.stubs()
    farm.close()
    with pytest.raises(NotAuthenticated):
        Farm(asking.address, token="other")._connection.stubs()


def test_a_token_does_not_show() -> None:
    config = ClientConfig(address="farm:7077", trust=Trust(token="s3cret"))
    assert "s3cret" not in repr(config)
    assert "s3cret" not in repr(vars(Farm("farm:7077", token="s3cret")))
