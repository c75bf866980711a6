"""How a farm bears a store that grows: entries that were made without compiling, looked up among more and more."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilefarm.benchmarks.farms import serving, wait_until_quiet
from compilefarm.benchmarks.points import OnPoint, Point
from compilefarm.benchmarks.requests import trace_requests
from compilefarm.cli.farm import connection_to
from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import NotStored
from compilefarm.core.keys import key_of
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_store
from compilefarm.v1.compile_service_pb2 import LookupRequest
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Blob, Encoding, Manifest

_LOOKUPS = 200
# Storing waits for the disk.
_AT_ONCE = 64
# Programs lie where their digests say; one for so many entries keeps the disk small.
_ENTRIES_OF_A_PROGRAM = 10


def grow_entries(sizes: Sequence[int], *, folder: Path, on_point: OnPoint) -> None:
    """Measures start and lookups of a farm for each number of entries."""
    job = trace_requests(1).requests[0].request.job
    place = folder / "entries"
    place.mkdir()
    stored, first_hit = 0, 0.0
    for size in sizes:
        started = time.perf_counter()
        asyncio.run(fill_store(place / "store", job=job, first=stored, end=size))
        fill_seconds, stored, added = time.perf_counter() - started, size, size - stored
        started = time.perf_counter()
        asyncio.run(open_store(str(place / "store")))
        open_seconds = time.perf_counter() - started
        with serving(place, device="cpu") as address:
            wait_until_quiet(address)
            hit, miss = _look_up(address, job=job, stored=size)
        first_hit = first_hit or hit
        figures = {
            "store one seconds": fill_seconds / added,
            "open the store seconds": open_seconds,
            "hit seconds": hit,
            "miss seconds": miss,
            "hit as a share of the fewest entries": hit / first_hit,
        }
        on_point(Point(axis="entries", size=size, figures=figures))


async def fill_store(location: Path, *, job: Job, first: int, end: int) -> None:
    """Stores an entry for each number from `first` on and below `end`: what `variant_of` makes of the job."""
    store = await open_store(str(location))
    for begin in range(first, end, _AT_ONCE):
        numbers = range(begin, min(begin + _AT_ONCE, end))
        await asyncio.gather(*(_put(store, job=job, number=number) for number in numbers))


async def _put(store: ArtifactStore, *, job: Job, number: int) -> None:
    content = f"program {number // _ENTRIES_OF_A_PROGRAM}".encode()
    digest = digest_of(content)
    program = Blob(
        digest=digest,
        size_bytes=len(content),
        encoding=Encoding.ENCODING_IDENTITY,
        content_size_bytes=len(content),
    )
    manifest = Manifest(key=key_of(variant_of(job, number)).text, format=ARTIFACT_FORMAT, program=program)
    await store.put_artifact(manifest, blobs={digest: content})


def variant_of(job: Job, number: int) -> Job:
    """The job, with another key for every number."""
    other = Job()
    other.CopyFrom(job)
    other.ambient.cpu_threads = number + 1
    return other


def _look_up(address: str, *, job: Job, stored: int) -> tuple[float, float]:
    """The median seconds of a hit and of a miss, asked in turn."""
    with connection_to(address) as connected:
        stub = CompileServiceStub(connected.stubs().channel)

        def ask(number: int) -> float:
            request = LookupRequest(job=variant_of(job, number))
            started = time.perf_counter()
            with connected.calls():
                stub.Lookup(request)
            return time.perf_counter() - started

        def ask_in_vain(number: int) -> float:
            started = time.perf_counter()
            try:
                ask(number)
            except NotStored:
                return time.perf_counter() - started
            raise AssertionError("what nobody stored was found")

        pairs = [(ask(present), ask_in_vain(stored + absent)) for absent, present in _spread(stored)]
    return statistics.median(hit for hit, _ in pairs), statistics.median(miss for _, miss in pairs)


def _spread(stored: int) -> Iterator[tuple[int, int]]:
    """Entries all over the store; the first is asked for, too, so that no later one pays for the connection."""
    return enumerate(number * stored // _LOOKUPS for number in range(_LOOKUPS))
