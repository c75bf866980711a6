"""How a farm bears pods that start at once: each connects, looks a graph up and fetches its artifact."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from compilefarm.benchmarks.farms import serving, wait_until_quiet
from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.benchmarks.requests import trace_requests
from compilefarm.cli.farm import connection_to
from compilefarm.client.planner import Planner
from compilefarm.client.prewarming import Prewarming
from compilefarm.core.artifacts import blobs_to_run
from compilefarm.v1.blob_service_pb2 import ReadRequest
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceStub
from compilefarm.v1.compile_service_pb2 import LookupRequest
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import Job

if TYPE_CHECKING:
    from compilefarm.v1.blob_service_pb2_grpc import BlobServiceAsyncStub
    from compilefarm.v1.compile_service_pb2_grpc import CompileServiceAsyncStub

# A connection for each, as pods have.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def grow_clients(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures so many hits at once, for each number of clients."""
    recording = trace_requests(1)
    with serving(folder / "clients", device="cpu") as address:
        with connection_to(address) as connected:
            wait_until_quiet(address)
            plan = Planner(connected, environment=None, mode=None).plan(recording)
            report = Prewarming(connected, tenant="", parallel=1).run(plan)
        if report.failed:
            on_point(Point(axis="clients", size=sizes[0], figures={}, reason=report.failed[0].problem))
            return
        wait_until_quiet(address)
        job = plan.graphs[0].request.job
        # The first reads the store from the disk.
        asyncio.run(_hit(job, address=address))
        alone = statistics.median(asyncio.run(_hit(job, address=address))[0] for _ in range(10))
        for size in sizes:
            on_point(asyncio.run(_point(size, job=job, address=address, alone_seconds=alone)))


async def _point(size: int, *, job: Job, address: str, alone_seconds: float) -> Point:
    started = time.perf_counter()
    found = await asyncio.gather(*(_hit(job, address=address) for _ in range(size)))
    seconds = time.perf_counter() - started
    waits = sorted(waited for waited, _ in found)
    figures = {
        "until the last has it seconds": seconds,
        "median seconds": statistics.median(waits),
        "slowest seconds": waits[-1],
        "clients a second": size / seconds,
        "share of one after the other": seconds / (size * alone_seconds),
        "fetched by each bytes": found[0][1],
    }
    return Point(axis="clients", size=size, figures=figures)


async def _hit(job: Job, *, address: str) -> tuple[float, int]:
    """Seconds and bytes of one client's hit."""
    started = time.perf_counter()
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        compiles = cast("CompileServiceAsyncStub", CompileServiceStub(channel))
        blobs = cast("BlobServiceAsyncStub", BlobServiceStub(channel))
        manifest = (await compiles.Lookup(LookupRequest(job=job))).manifest
        fetched = 0
        for digest in dict.fromkeys(blob.digest for blob in blobs_to_run(manifest)):
            async for response in blobs.Read(ReadRequest(digest=digest)):
                fetched += len(response.chunk)
    return time.perf_counter() - started, fetched
