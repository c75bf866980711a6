"""What is true of every RPC: malformed requests do not hurt, strangers learn no secrets, tools find their way."""

from __future__ import annotations

import random
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from obstore.store import MemoryStore

from compilefarm.service.health_service import SERVICES
from compilefarm.service.testing import Calls, Refused, ScriptedPool, calling, refusals, sample_job, serving
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import open_caches
from compilefarm.v1 import admin_service_pb2, blob_service_pb2, cache_service_pb2, compile_service_pb2
from compilefarm.v1.job_pb2 import Job

METHODS = [
    method
    for module in (compile_service_pb2, blob_service_pb2, cache_service_pb2, admin_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
# The tag of a field that no message has, with an unfinished length.
CUT_OFF = b"\xfa\x7f\xff"


async def send(channel: grpc.aio.Channel, method, content: bytes) -> list[bytes]:  # type: ignore[no-untyped-def]
    """Calls an RPC with the bytes as they are, and returns the answers as they are."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    with refusals():
        if method.client_streaming:
            return [await channel.stream_unary(path)(iter([content]))]
        if method.server_streaming:
            return [answer async for answer in channel.unary_stream(path)(content)]
        return [await channel.unary_unary(path)(content)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
async def test_malformed_requests_are_refused_and_the_service_goes_on(method) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(method.full_name)
    caches = await open_caches("memory:", size_limit_bytes=10**6, lifetime_seconds=3600)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="the request cannot be parsed") as refused:
            await send(calls.channel, method, CUT_OFF)
        assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
        for _ in range(50):
            try:
                await send(calls.channel, method, chance.randbytes(chance.randrange(1, 200)))
            except Refused as error:
                # Some random bytes are a message by chance.
                assert error.status in {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}  # noqa: PT017
        assert (await calls.status()).farm_version
        # Rubbish may drain the farm: every message is a DrainRequest.
        if method.name != "Drain":
            assert (await calls.finish(sample_job())).HasField("manifest")


async def test_a_request_with_fields_that_the_service_does_not_know_is_refused() -> None:
    # Field 1000 of the job, a varint: 0xc0 0x3e is its tag.
    newer = Job.FromString(sample_job().SerializeToString() + b"\xc0\x3e\x01")
    assert newer.ByteSize() > sample_job().ByteSize()
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match=r"does not know.*upgrade the farm first") as refused:
            await calls.finish(newer)
    assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert pool.assignments == []


async def test_a_request_that_is_nested_too_deeply_is_refused() -> None:
    content = b""
    for _ in range(5000):
        # Value.list (field 8) of a Sequence with one item (field 1).
        content = _field(8, _field(1, content))
    node = _field(3, _field(3, content))
    job = _field(1, _field(1, node))
    async with serving() as gateway, calling(gateway.address) as calls:
        method = compile_service_pb2.DESCRIPTOR.services_by_name["CompileService"].methods_by_name["Compile"]
        with pytest.raises(Refused) as refused:
            await send(calls.channel, method, _field(1, job))
        assert refused.value.status == "INVALID_ARGUMENT"
        assert (await calls.finish(sample_job())).HasField("manifest")


async def test_a_message_above_the_size_limit_is_refused() -> None:
    job = sample_job()
    job.graph.nodes[1].call.args.add(text="x" * (4 * 1024 * 1024))
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="larger than max"):
            await calls.finish(job)
        assert (await calls.finish(sample_job())).HasField("manifest")


class BrokenStore:
    """Every use of it is a defect, but where it is."""

    shared = ObjectBackend(MemoryStore(), location="memory:")

    def __getattr__(self, name: str) -> Callable[..., object]:
        raise ZeroDivisionError("the secret path /home/me")


@pytest.mark.parametrize(
    "call",
    [
        lambda calls: calls.lookup(sample_job()),
        lambda calls: calls.finish(sample_job()),
        lambda calls: calls.read("ab" * 32),
        lambda calls: calls.write(b"content"),
        lambda calls: calls.status(),
    ],
    ids=["unary-unary", "flight", "unary-stream", "stream-unary", "admin"],
)
async def test_a_defect_shows_as_an_incident_only(
    call: Callable[[Calls], Message], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store=BrokenStore()) as gateway, calling(gateway.address) as calls:  # type: ignore[arg-type]
        with pytest.raises(Refused) as refused:
            await call(calls)  # type: ignore[misc]
    assert (refused.value.status, refused.value.reason) == ("INTERNAL", "internal")
    assert "secret" not in refused.value.message
    incident = refused.value.message.split("incident ")[1][:12]
    assert incident in caplog.text
    assert "ZeroDivisionError: the secret path /home/me" in caplog.text


async def test_a_long_message_is_cut_rather_than_lost() -> None:
    job = sample_job()
    job.environment.torch = "ä" * 4000
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="no worker can compile") as refused:
            await calls.finish(job)
    assert (refused.value.status, refused.value.reason) == ("FAILED_PRECONDITION", "no_matching_worker")
    assert refused.value.message.endswith(" ...")


async def test_going_away_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        watch = await calls.watch(sample_job())
        watch.cancel()
        assert (await calls.finish(sample_job())).HasField("manifest")
    assert "incident" not in caplog.text


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_health_is_told_for_the_whole_and_for_each_service(service: str) -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        answer = await HealthStub(calls.channel).Check(HealthCheckRequest(service=service))
    assert answer.status == HealthCheckResponse.SERVING


async def test_reflection_lists_the_services_and_describes_them() -> None:
    ask = [ServerReflectionRequest(list_services=""), ServerReflectionRequest(file_containing_symbol=SERVICES[0])]
    async with serving() as gateway, calling(gateway.address) as calls:
        stub = ServerReflectionStub(calls.channel)
        listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(ask))]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {*SERVICES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert any(b"CompileRequest" in file for file in described.file_descriptor_response.file_descriptor_proto)


async def test_a_method_that_does_not_exist_is_said_not_to() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        with pytest.raises(Refused, match="UNIMPLEMENTED"), refusals():
            await calls.channel.unary_unary("/compilefarm.v1.CompileService/Delete")(b"")


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field as protobuf writes it."""
    length, size = len(content), b""
    while True:
        size += bytes([length & 0x7F | (0x80 if length > 0x7F else 0)])
        length >>= 7
        if not length:
            return bytes([number << 3 | 2]) + size + content
