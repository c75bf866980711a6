"""Rubbish."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor

from compilefarm.core.testing import Mutator
from compilefarm.service.testing import calling, sample_job
from compilefarm.v1 import admin_service_pb2, blob_service_pb2, compile_service_pb2
from compilefarm.v1.compile_service_pb2 import CompileRequest, LookupRequest, PlanRequest
from compilefarm.v1.job_pb2 import Job
from tests.fuzz.damage import damage
from tests.fuzz.seeds import mutator, seeds

from .farm import KilledFarm, running
from .verdicts import Scale, Verdict, problems_of

_SEED = 11
_AT_A_TIME = 16
# A request that is worked on for so long hangs.
_PATIENCE_SECONDS = 60.0
_MOST_BYTES_ON_THE_LINE = 4096
# What a request can be answered with when nothing is wrong with the service.
_EXPECTED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
}
_SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (admin_service_pb2, "AdminService"),
        (blob_service_pb2, "BlobService"),
        (compile_service_pb2, "CompileService"),
    )
]
# It does what it says.
_METHODS = [method for service in _SERVICES for method in service.methods if method.name != "Drain"]


def run(scale: Scale) -> Verdict:
    """Requests of real graphs in which something was changed, any bytes to any method, and any bytes on the line."""
    requests, lines = (400, 20) if scale.short else (20_000, 500)
    random = Random(_SEED)
    with running(scale.folder / "farm", options=("--slots=0",)) as farm:
        for _ in range(lines):
            _talk_nonsense(farm.address, random=random)
        answers = asyncio.run(_ask(farm, requests, random=random))
        serves = asyncio.run(_serves(farm.address))
        alive = farm.is_alive()
    log = (scale.folder / "farm" / "gateway.log").read_text()
    unexpected = {word: count for word, count in answers.items() if word not in _EXPECTED}
    return Verdict(
        done=f"{answers.total()} bad requests to {len(_METHODS)} methods, {lines} connections with random bytes",
        seen=", ".join(f"{count} {word}" for word, count in answers.most_common()),
        problems=[
            *problems_of(
                the_service_is_alive=alive,
                it_serves_the_next_request=serves,
                nothing_is_an_incident="incident" not in log.lower(),
            ),
            *(f"{count} requests were answered {word}" for word, count in unexpected.items()),
        ],
    )


def _talk_nonsense(address: str, *, random: Random) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        # Now and then it begins well.
        start = random.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
        connection.sendall(start + random.randbytes(random.randrange(_MOST_BYTES_ON_THE_LINE)))


async def _ask(farm: KilledFarm, requests: int, *, random: Random) -> Counter[str]:
    answers: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(farm.address) as channel:
        contents = _malformed(requests, random=random)

        async def caller() -> None:
            for path, content in contents:
                answers[await _answer(channel, path, content)] += 1

        async with asyncio.TaskGroup() as callers:
            for _ in range(_AT_A_TIME):
                callers.create_task(caller())
    return answers


async def _answer(channel: grpc.aio.Channel, path: str, content: bytes) -> str:
    # On the wire a call with one request is a call with a stream of one, and the same with answers.
    call = channel.stream_stream(path)(iter([content]), timeout=_PATIENCE_SECONDS)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def _malformed(requests: int, *, random: Random) -> Iterator[tuple[str, bytes]]:
    jobs = [request.job for request in seeds()]
    changed = mutator(random)
    for _ in range(requests):
        yield random.choice(_WAYS)(jobs, changed, random)


def _changed_graph(jobs: Sequence[Job], changed: Mutator, random: Random) -> tuple[str, bytes]:
    job = Job()
    job.CopyFrom(random.choice(jobs))
    for _ in range(random.randrange(1, 4)):
        changed.mutate(job)
    name, kind = random.choice([("Compile", CompileRequest), ("Lookup", LookupRequest), ("Plan", PlanRequest)])
    return f"/compilefarm.v1.CompileService/{name}", kind(job=job).SerializeToString()


def _damaged_bytes(jobs: Sequence[Job], changed: Mutator, random: Random) -> tuple[str, bytes]:
    path, content = _changed_graph(jobs, changed, random)
    return path, damage(content, random=random)


def _any_message(jobs: Sequence[Job], changed: Mutator, random: Random) -> tuple[str, bytes]:
    method = random.choice(_METHODS)
    message = method.input_type._concrete_class()
    for _ in range(random.randrange(6)):
        changed.mutate(message)
    return _path(method), message.SerializeToString()


def _any_bytes(jobs: Sequence[Job], changed: Mutator, random: Random) -> tuple[str, bytes]:
    return _path(random.choice(_METHODS)), random.randbytes(random.randrange(200))


_WAYS: Sequence[Callable[[Sequence[Job], Mutator, Random], tuple[str, bytes]]] = (
    _changed_graph,
    _damaged_bytes,
    _any_message,
    _any_bytes,
)


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


async def _serves(address: str) -> bool:
    async with calling(address) as calls:
        return (await calls.finish(sample_job("torch.fine"))).HasField("manifest")
