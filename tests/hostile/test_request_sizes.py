"""What is larger than any request of a method is refused before it is parsed, of every method that there is."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from compilefarm.core.cache_entries import KEYS_PER_QUESTION, LONGEST_KEY
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.packages import MAX_CONTENT_BYTES
from compilefarm.service.blob_service import MAX_DIGESTS
from compilefarm.service.request_sizes import check_request_size
from compilefarm.service.testing import Refused, calling, refusals, serving
from compilefarm.service.uploads import MAX_CHUNK_BYTES
from compilefarm.store.opening import open_caches
from compilefarm.v1 import (
    admin_service_pb2,
    blob_service_pb2,
    cache_service_pb2,
    compile_service_pb2,
    package_service_pb2,
    signer_service_pb2,
)
from compilefarm.v1.blob_service_pb2 import FindMissingRequest, WriteRequest
from compilefarm.v1.cache_service_pb2 import CacheEntry, FindMissingEntriesRequest, PutRequest, RemoveEntriesRequest
from compilefarm.v1.compile_service_pb2 import GraphReport, ReportRequest, SelfCheckReport
from compilefarm.v1.manifest_pb2 import Signature
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.package_service_pb2 import PublishRequest, WithdrawRequest
from tests.floods import flood, paths

SERVED = (compile_service_pb2, blob_service_pb2, cache_service_pb2, package_service_pb2, admin_service_pb2)
# Jobs are as large as messages may be, and what they hold is counted (tests/service/test_validation.py); manifests come
# to a signer from its own farm.
UNBOUNDED = {"Lookup", "Plan", "Compile", "Sign"}
LARGER_THAN_ANY = 3_900_000


def methods(*modules: object) -> list[MethodDescriptor]:
    services = (service for module in modules for service in module.DESCRIPTOR.services_by_name.values())  # type: ignore[attr-defined]
    return [method for service in services for method in service.methods]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


ALL = methods(*SERVED, signer_service_pb2)


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_every_method_has_a_largest_request(method: MethodDescriptor) -> None:
    if method.name in UNBOUNDED:
        check_request_size(path_of(method), LARGER_THAN_ANY)
        return
    with pytest.raises(InvalidRequest, match=f"for {method.name}: at most"):
        check_request_size(path_of(method), LARGER_THAN_ANY)


async def test_requests_of_nothing_but_empty_parts_are_refused() -> None:
    caches = await open_caches("memory:", size_limit_bytes=2**30, lifetime_seconds=3600)
    async with serving(caches=caches) as gateway, calling(gateway.address) as calls:
        for method in methods(*SERVED):
            for path in [path for path in paths(method.input_type) if method.name not in UNBOUNDED]:
                content = flood(path, count=LARGER_THAN_ANY // 2)
                call = calls.channel.stream_stream(path_of(method))(iter([content]))
                with pytest.raises(Refused, match=f"for {method.name}: at most"), refusals():
                    await anext(aiter(call))


async def test_reflection_and_health_take_no_megabytes() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        for name in ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "grpc.health.v1.Health/Check"):
            call = calls.channel.stream_stream(f"/{name}")(iter([bytes(60_000)]))
            with pytest.raises(Refused, match="at most 16384 are allowed"), refusals():
                await anext(aiter(call))


FULL: dict[str, Message] = {
    "CompileService/Report": ReportRequest(
        graphs=[
            GraphReport(outcome=5, reason="r" * 40, spent_seconds=0.1, avoided_seconds=0.1, local_seconds=0.1)
            for _ in range(1000)
        ],
        self_checks=[SelfCheckReport(key="k" * 81, outcome=2, detail="\U0001f525" * 300) for _ in range(100)],
    ),
    "BlobService/FindMissing": FindMissingRequest(digests=["ab" * 32] * MAX_DIGESTS),
    "BlobService/Write": WriteRequest(digest="ab" * 32, offset_bytes=2**40, chunk=bytes(MAX_CHUNK_BYTES)),
    "CacheService/Put": PutRequest(chunk=bytes(MAX_CHUNK_BYTES)),
    "CacheService/FindMissingEntries": FindMissingEntriesRequest(keys=["k" * LONGEST_KEY] * KEYS_PER_QUESTION),
    "CacheService/RemoveEntries": RemoveEntriesRequest(cache=1, keys=["k" * LONGEST_KEY] * KEYS_PER_QUESTION),
    "PackageService/Publish": PublishRequest(
        package=SignedPackage(
            key="k" * 81, content=bytes(MAX_CONTENT_BYTES), name="ab" * 32, signature=Signature(value=bytes(3900))
        )
    ),
    "PackageService/Withdraw": WithdrawRequest(key="k" * 81, digest="ab" * 32, detail="\U0001f525" * 300),
}


@pytest.mark.parametrize("name", FULL)
def test_the_largest_that_is_allowed_fits(name: str) -> None:
    check_request_size(f"/compilefarm.v1.{name}", FULL[name].ByteSize())


def test_the_longest_description_of_an_entry_fits() -> None:
    entry = CacheEntry(cache=1, key="k" * LONGEST_KEY, digest="ab" * 32, signature=Signature(value=bytes(2900)))
    check_request_size("/compilefarm.v1.CacheService/Put", PutRequest(entry=entry).ByteSize())
