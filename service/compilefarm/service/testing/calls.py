"""Calls of tests to a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from compilefarm.core.cache_entries import describe
from compilefarm.core.chunks import UPLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import REASON_KEY, MissingBlobs
from compilefarm.core.metadata import BEARER, REQUEST_KEY, TENANT_KEY, TOKEN_KEY
from compilefarm.service.testing.jobs import sample_job
from compilefarm.v1.admin_service_pb2 import (
    CancelJobRequest,
    DescribeEnvironmentRequest,
    DescribeEnvironmentResponse,
    DrainRequest,
    DrainResponse,
    InspectRequest,
    ListJobsRequest,
    ListJobsResponse,
    RetryJobRequest,
    StatusRequest,
    StatusResponse,
)
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.blob_service_pb2 import FindMissingRequest, ReadRequest, WriteRequest
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceStub
from compilefarm.v1.cache_service_pb2 import (
    CacheEntry,
    FindEntryRequest,
    FindMissingEntriesRequest,
    FoundEntry,
    GetRequest,
    ListEntriesRequest,
    PutRequest,
    RemoveEntriesRequest,
    TorchCache,
)
from compilefarm.v1.cache_service_pb2_grpc import CacheServiceStub
from compilefarm.v1.compile_service_pb2 import (
    CompileRequest,
    CompileResponse,
    Finished,
    GraphReport,
    LookupRequest,
    PlanRequest,
    PlanResponse,
    Priority,
    Progress,
    ReportRequest,
    SelfCheckReport,
)
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import Job, Phase
from compilefarm.v1.manifest_pb2 import Check, Manifest
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.package_service_pb2 import FindRequest, PublishRequest, WithdrawRequest
from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub

if TYPE_CHECKING:
    from compilefarm.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from compilefarm.v1.blob_service_pb2_grpc import BlobServiceAsyncStub
    from compilefarm.v1.cache_service_pb2_grpc import CacheServiceAsyncStub
    from compilefarm.v1.compile_service_pb2_grpc import CompileServiceAsyncStub
    from compilefarm.v1.package_service_pb2_grpc import PackageServiceAsyncStub


class Refused(Exception):
    """A call that ended with an error status.

    Attributes:
        status: its name.
        reason: the machine-readable word beside it; empty if there is none.
        message: the details.
        metadata: the trailing metadata.
    """

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.status = error.code().name
        self.message = error.details() or ""
        self.metadata = dict(tuple(error.trailing_metadata() or ()))
        self.reason = self.metadata.get(REASON_KEY, "")


class Watch:
    """A request for a compile, whose events are taken one by one."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[CompileRequest, CompileResponse]) -> None:
        self._call = call
        self._events = aiter(call)

    async def next(self) -> CompileResponse:
        """The next event."""
        with refusals():
            return await anext(self._events)

    async def finish(self) -> Finished:
        """Waits for the end of the call and returns its result."""
        with refusals():
            return [event async for event in self._events][-1].finished

    async def progress(self, phase: Phase.ValueType) -> Progress:
        """The next progress of that phase."""
        while True:
            event = await self.next()
            if event.progress.phase == phase:
                return event.progress

    def cancel(self) -> None:
        """Goes away."""
        self._call.cancel()


class Calls:
    """A client of a gateway. Every method raises Refused if the call ends with an error status.

    Attributes:
        channel: the connection.
        compiles, blobs, caches, packages, admin: the stubs, for calls that are to be broken off or that make no sense.

    Args:
        channel: the connection.
        blocking: another one, for what is sent as a stream: grpc.aio forgets why the service ended one that it has not
            read.
        metadata: sent with calls on that one.
    """

    def __init__(
        self, channel: grpc.aio.Channel, *, blocking: grpc.Channel, metadata: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.channel = channel
        self._blocking = blocking
        self._metadata = tuple(metadata)
        # The generated code has one class of stubs; its types tell the asynchronous use apart.
        self.compiles = cast("CompileServiceAsyncStub", CompileServiceStub(channel))
        self.blobs = cast("BlobServiceAsyncStub", BlobServiceStub(channel))
        self.caches = cast("CacheServiceAsyncStub", CacheServiceStub(channel))
        self.packages = cast("PackageServiceAsyncStub", PackageServiceStub(channel))
        self.admin = cast("AdminServiceAsyncStub", AdminServiceStub(channel))

    async def watch(
        self,
        job: Job,
        *,
        priority: Priority.ValueType = Priority.PRIORITY_UNSPECIFIED,
        tenant: str = "",
        request_id: str = "",
    ) -> Watch:
        """Asks for a compile. It is on its way when this returns."""
        watch = Watch(self._ask(job, priority=priority, tenant=tenant, request_id=request_id))
        assert (await watch.next()).HasField("accepted")
        return watch

    async def compile(self, job: Job, *, tenant: str = "") -> list[CompileResponse]:
        """All that is said about a job."""
        with refusals():
            return [response async for response in self._ask(job, tenant=tenant)]

    async def finish(self, job: Job, *, tenant: str = "") -> Finished:
        """Requests a job and returns its result."""
        return (await self.compile(job, tenant=tenant))[-1].finished

    async def lookup(self, job: Job) -> Manifest:
        """Looks a job up."""
        with refusals():
            return (await self.compiles.Lookup(LookupRequest(job=job))).manifest

    async def plan(self, job: Job) -> PlanResponse:
        """Asks for the plan of a job."""
        with refusals():
            return await self.compiles.Plan(PlanRequest(job=job))

    async def describe_environment(self, name: str) -> DescribeEnvironmentResponse:
        """Describes the workers of an environment."""
        with refusals():
            return await self.admin.DescribeEnvironment(DescribeEnvironmentRequest(name=name))

    async def miss(self, *digests: str) -> None:
        """Asks for a compile that needs blobs which are not stored: they may be written after that."""
        try:
            await self.finish(sample_job("torch.unwanted", constants=digests))
        except Refused as refused:
            if refused.reason != MissingBlobs.reason:
                raise

    async def write(self, content: bytes) -> str:
        """Stores a blob that a compile misses, and returns its digest."""
        digest = digest_of(content)
        if await self.find_missing([digest]):
            await self.miss(digest)
        pieces, offset_bytes = [], 0
        for chunk in cut(content, chunk_bytes=UPLOAD_CHUNK_BYTES):
            pieces.append(WriteRequest(digest=digest, offset_bytes=offset_bytes, chunk=bytes(chunk)))
            offset_bytes += len(chunk)
        assert await self.write_pieces(pieces) == len(content)
        return digest

    async def write_pieces(self, pieces: Sequence[WriteRequest]) -> int:
        """Sends pieces as they are and returns the size that was stored."""
        write = BlobServiceStub(self._blocking).Write
        with refusals():
            return (await asyncio.to_thread(write, iter(pieces), metadata=self._metadata)).size_bytes

    async def read(self, digest: str, *, offset_bytes: int = 0) -> bytes:
        """The bytes of a blob."""
        with refusals():
            request = ReadRequest(digest=digest, offset_bytes=offset_bytes)
            return b"".join([response.chunk async for response in self.blobs.Read(request)])

    async def put_entry(
        self, content: bytes, *, key: str, cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH
    ) -> None:
        """Writes a cache entry."""
        entry = describe(content, cache=cache, key=key)
        pieces = (PutRequest(chunk=bytes(piece)) for piece in cut(content, chunk_bytes=UPLOAD_CHUNK_BYTES))
        await self.put_pieces([PutRequest(entry=entry), *pieces])

    async def put_pieces(self, pieces: Sequence[PutRequest]) -> None:
        """Writes a cache entry in these pieces."""
        put = CacheServiceStub(self._blocking).Put
        with refusals():
            await asyncio.to_thread(put, iter(pieces), metadata=self._metadata)

    async def get_entry(
        self, key: str, *, cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH
    ) -> tuple[CacheEntry, bytes]:
        """The description and the bytes of a cache entry."""
        with refusals():
            first, *rest = [answer async for answer in self.caches.Get(GetRequest(cache=cache, key=key))]
            return first.entry, b"".join(answer.chunk for answer in rest)

    async def find_entries(
        self,
        key: str,
        *,
        cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH,
        ahead_bytes: int = 0,
    ) -> list[FoundEntry]:
        """A cache entry, and those that came ahead."""
        with refusals():
            request = FindEntryRequest(cache=cache, key=key, ahead_bytes=ahead_bytes)
            return list((await self.caches.FindEntry(request)).entries)

    async def remove_entries(
        self, keys: Sequence[str], *, cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH
    ) -> None:
        """Removes cache entries."""
        with refusals():
            await self.caches.RemoveEntries(RemoveEntriesRequest(cache=cache, keys=keys))

    async def publish(self, package: SignedPackage) -> bool:
        """Publishes a package; whether it was not there before."""
        with refusals():
            return (await self.packages.Publish(PublishRequest(package=package))).is_new

    async def withdraw_package(self, package: SignedPackage) -> bool:
        """Says that a package is wrong; whether it was served until now."""
        with refusals():
            request = WithdrawRequest(key=package.key, digest=digest_of(package.content), detail="guards")
            return (await self.packages.Withdraw(request)).is_withdrawn

    async def find_packages(self, key: str) -> list[SignedPackage]:
        """The packages of a key."""
        with refusals():
            return [answer.package async for answer in self.packages.Find(FindRequest(key=key))]

    async def list_entries(
        self, key_prefix: str = "", *, cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH
    ) -> list[CacheEntry]:
        """Returns the descriptions of cache entries."""
        with refusals():
            answers = self.caches.ListEntries(ListEntriesRequest(cache=cache, key_prefix=key_prefix))
            return [entry async for answer in answers for entry in answer.entries]

    async def find_missing_entries(
        self, keys: Sequence[str], *, cache: TorchCache.ValueType = TorchCache.TORCH_CACHE_FX_GRAPH
    ) -> list[str]:
        """Returns the keys of missing cache entries."""
        with refusals():
            request = FindMissingEntriesRequest(cache=cache, keys=keys)
            return list((await self.caches.FindMissingEntries(request)).keys)

    async def find_missing(self, digests: Sequence[str]) -> list[str]:
        """Returns the digests of missing blobs."""
        with refusals():
            return list((await self.blobs.FindMissing(FindMissingRequest(digests=digests))).digests)

    async def status(self) -> StatusResponse:
        """The state of the farm."""
        with refusals():
            return await self.admin.Status(StatusRequest())

    async def wait_until_queued(self, jobs: int) -> None:
        """Asks for the status until that many jobs wait for a worker."""
        while (await self.status()).queued_jobs != jobs:
            pass

    async def list_jobs(self) -> ListJobsResponse:
        """The jobs of this moment, and the keys that are quarantined."""
        with refusals():
            return await self.admin.ListJobs(ListJobsRequest())

    async def cancel(self, key: str) -> str:
        """Ends a job; returns its key."""
        with refusals():
            return (await self.admin.CancelJob(CancelJobRequest(key=key))).key

    async def retry(self, key: str) -> str:
        """Takes a key out of quarantine; returns it."""
        with refusals():
            return (await self.admin.RetryJob(RetryJobRequest(key=key))).key

    async def drain(self) -> list[DrainResponse]:
        """Drains the farm, and waits until it has done all its jobs."""
        with refusals():
            return [response async for response in self.admin.Drain(DrainRequest())]

    async def report(self, *graphs: GraphReport) -> None:
        """Tells what became of graphs."""
        with refusals():
            await self.compiles.Report(ReportRequest(graphs=graphs))

    async def report_self_checks(self, *checks: SelfCheckReport) -> None:
        """Tells what comparisons with uncompiled graphs found."""
        with refusals():
            await self.compiles.Report(ReportRequest(self_checks=checks))

    async def inspect(self, key: str) -> Manifest:
        """Inspects a key, or the only key with that prefix."""
        with refusals():
            return (await self.admin.Inspect(InspectRequest(key=key))).manifest

    async def checks(self, key: str) -> list[Check]:
        """Returns the checks of the artifacts of a key, the latest last."""
        with refusals():
            return list((await self.admin.Inspect(InspectRequest(key=key))).checks)

    def _ask(
        self,
        job: Job,
        *,
        priority: Priority.ValueType = Priority.PRIORITY_UNSPECIFIED,
        tenant: str,
        request_id: str = "",
    ) -> grpc.aio.UnaryStreamCall[CompileRequest, CompileResponse]:
        told = {TENANT_KEY: tenant, REQUEST_KEY: request_id}
        metadata = tuple((name, value) for name, value in told.items() if value)
        return self.compiles.Compile(CompileRequest(job=job, priority=priority), metadata=metadata)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns the errors of gRPC into Refused."""
    try:
        yield
    except grpc.RpcError as error:
        raise Refused(cast("grpc.aio.AioRpcError", error)) from None


@asynccontextmanager
async def calling(
    address: str, *, token: str = "", credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Calls]:
    """Connects to a gateway.

    Args:
        address: of it.
        token: shown with every call, if there is one.
        credentials: for TLS; None speaks in clear.
    """
    shown = [kind(token) for kind in (_OneToOne, _OneToMany, _ManyToOne, _ManyToMany)] if token else None
    metadata = [(TOKEN_KEY, f"{BEARER}{token}")] if token else []
    if credentials is None:
        # A connection of its own, as each pod has one.
        own = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(address, interceptors=shown, options=own)
        blocking = grpc.insecure_channel(address)
    else:
        channel = grpc.aio.secure_channel(address, credentials, interceptors=shown)
        blocking = grpc.secure_channel(address, credentials)
    async with channel:
        with blocking:
            yield Calls(channel, blocking=blocking, metadata=metadata)


class _Shown:
    """Shows a token with every call. gRPC takes an interceptor for one kind of calls only."""

    def __init__(self, token: str) -> None:
        self._token = token

    def _with_token(self, details: Any) -> Any:
        metadata = [*(details.metadata or ()), (TOKEN_KEY, f"{BEARER}{self._token}")]
        return details._replace(metadata=grpc.aio.Metadata(*metadata))


class _OneToOne(_Shown, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request)


class _OneToMany(_Shown, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request)


class _ManyToOne(_Shown, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request_iterator)


class _ManyToMany(_Shown, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request_iterator)
