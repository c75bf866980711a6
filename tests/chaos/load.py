"""Load: against the least that a server of the same kind does, in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import grpc.aio

from compilefarm.service.testing import Calls, Refused, calling
from compilefarm.v1.blob_service_pb2 import ReadRequest
from compilefarm.v1.compile_service_pb2 import LookupRequest, LookupResponse

from .farm import ROOT, KilledFarm, running, with_root
from .programs import job_of, key
from .verdicts import Scale, Verdict

_LOOKUPS, _READS = "/compilefarm.v1.CompileService/Lookup", "/compilefarm.v1.BlobService/Read"
_CALLERS = 32
_READERS = 4
# What a gateway of 80 MB may have more after all those requests; a leak of 100 bytes a request would be that much.
_MOST_GROWTH_BYTES = 10_000_000
_LOOKUP_GOAL, _READ_GOAL = 0.5, 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    rounds: int
    lookups: int
    reads: int
    blob_bytes: int
    requests: int
    streams: int
    keys: int


_SHORT = _Size(rounds=1, lookups=300, reads=4, blob_bytes=8 << 20, requests=5_000, streams=300, keys=5)
_LONG = _Size(rounds=5, lookups=4_000, reads=24, blob_bytes=64 << 20, requests=100_000, streams=1000, keys=50)


def run(scale: Scale) -> Verdict:
    """Measures lookups and reads of blobs in turn with a bare server, then memory, then has many wait."""
    size = _SHORT if scale.short else _LONG
    gate = scale.folder / "gate"
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)
    child = (f"--gate={gate}", f"--size={size.blob_bytes}")
    with running(scale.folder / "farm", child=child, cluster=scale.cluster) as farm:
        asked, read = asyncio.run(_ratios(farm, size=size))
        before, after = asyncio.run(_memory(farm, requests=size.requests))
    with running(scale.folder / "crowded", child=(f"--gate={gate}",), cluster=scale.cluster) as farm:
        os.close(opened)
        per_stream, waited = asyncio.run(_crowd(farm, gate, size=size))
    problems = [] if waited == size.streams else [f"{waited} of {size.streams} streams ended well"]
    if not scale.short:
        problems += [f"lookups reach {asked.ratio:.2f} of a bare echo"] if asked.ratio < _LOOKUP_GOAL else []
        problems += [f"reads reach {read.ratio:.2f} of a bare stream"] if read.ratio < _READ_GOAL else []
        problems += [f"memory grew by {(after - before) / 1e6:.1f} MB"] if after - before > _MOST_GROWTH_BYTES else []
    return Verdict(
        done=f"{size.rounds} rounds of {size.lookups} lookups by {_CALLERS} callers and {size.reads} reads of "
        f"{size.blob_bytes >> 20} MiB by {_READERS}, in turn with a bare server; {size.requests} requests of 4 kinds; "
        f"{size.streams} streams that wait for {size.keys} compiles",
        seen=f"{asked.farm:.0f} lookups/s, {asked.ratio:.2f} of a bare echo ({asked.bare:.0f}/s); "
        f"{read.farm * size.blob_bytes / 1e6:.0f} MB/s, {read.ratio:.2f} of a bare stream "
        f"({read.bare * size.blob_bytes / 1e6:.0f} MB/s); memory {before / 1e6:.1f} MB after a tenth of the requests, "
        f"{after / 1e6:.1f} MB after all; {per_stream / 1e3:.0f} kB for each stream that waits, {waited} ended well",
        problems=problems,
    )


class _Rates:
    """Calls a second.

    Attributes:
        farm, bare: medians over the rounds.
        ratio: the median of the rounds' ratios.
    """

    def __init__(self, pairs: list[tuple[float, float]]) -> None:
        self.farm, self.bare = (statistics.median(rates) for rates in zip(*pairs, strict=True))
        self.ratio = statistics.median(farm / bare for farm, bare in pairs)


async def _ratios(farm: KilledFarm, *, size: _Size) -> tuple[_Rates, _Rates]:
    """Lookups and reads a second."""
    job = job_of("large")
    async with calling(farm.address) as calls:
        manifest = (await calls.finish(job)).manifest
    lookup = LookupRequest(job=job).SerializeToString()
    read = ReadRequest(digest=manifest.program.digest).SerializeToString()
    answer_bytes = LookupResponse(manifest=manifest).ByteSize()
    asked, received = [], []
    with _bare_server(answer_bytes, size.blob_bytes) as bare:
        async with grpc.aio.insecure_channel(farm.address) as ours, grpc.aio.insecure_channel(bare) as theirs:
            for _ in range(size.rounds):
                farm_rate = await _ask(ours, _LOOKUPS, lookup, count=size.lookups)
                asked.append((farm_rate, await _ask(theirs, "/bare/Ask", lookup, count=size.lookups)))
                farm_rate = await _read(ours, _READS, read, size=size)
                received.append((farm_rate, await _read(theirs, "/bare/Read", read, size=size)))
    return _Rates(asked), _Rates(received)


async def _ask(channel: grpc.aio.Channel, path: str, request: bytes, *, count: int) -> float:
    call = channel.unary_unary(path)
    numbers = iter(range(count))

    async def caller() -> None:
        for _ in numbers:
            await call(request)

    started = perf_counter()
    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    return count / (perf_counter() - started)


async def _read(channel: grpc.aio.Channel, path: str, request: bytes, *, size: _Size) -> float:
    call = channel.unary_stream(path)
    numbers = iter(range(size.reads))

    async def reader() -> None:
        for _ in numbers:
            size_bytes = sum([len(message) async for message in call(request)])
            assert size_bytes >= size.blob_bytes, "it was cut short"

    started = perf_counter()
    await asyncio.gather(*(reader() for _ in range(_READERS)))
    return size.reads / (perf_counter() - started)


@contextlib.contextmanager
def _bare_server(answer_bytes: int, stream_bytes: int) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.chaos.bare_server", str(answer_bytes), str(stream_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=with_root(os.environ)) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def _memory(farm: KilledFarm, *, requests: int) -> tuple[int, int]:
    """What the gateway has in memory after a tenth of so many requests, and after all."""
    async with calling(farm.address) as calls:
        kinds = itertools.cycle((_find, _miss, _plan, _compile))
        await _ask_all(calls, itertools.islice(kinds, requests // 10))
        before = farm.resident_bytes()
        await _ask_all(calls, itertools.islice(kinds, requests - requests // 10))
        return before, farm.resident_bytes()


async def _ask_all(calls: Calls, kinds: Iterator[_Kind]) -> None:
    async def caller() -> None:
        for kind in kinds:
            await kind(calls)

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


_Kind = Callable[[Calls], Awaitable[None]]


async def _find(calls: Calls) -> None:
    await calls.lookup(job_of("large"))


async def _miss(calls: Calls) -> None:
    with contextlib.suppress(Refused):
        await calls.lookup(job_of("missing"))


async def _plan(calls: Calls) -> None:
    await calls.plan(job_of("large"))


async def _compile(calls: Calls) -> None:
    await calls.finish(job_of("large"))


async def _crowd(farm: KilledFarm, gate: Path, *, size: _Size) -> tuple[float, int]:
    """Bytes of the gateway for each stream that waits, and how many streams end well."""
    names = [f"graph_{number % size.keys}" for number in range(size.streams)]
    async with calling(farm.address) as calls:
        await calls.status()
        before = farm.resident_bytes()
        watches = await asyncio.gather(*(calls.watch(job_of(name)) for name in names))
        status = await calls.status()
        assert status.queued_jobs + status.running_jobs == size.keys, "somebody does not wait"
        per_stream = (farm.resident_bytes() - before) / size.streams
        opened = os.open(gate, os.O_RDWR)
        ends = await asyncio.gather(*(watch.finish() for watch in watches))
        os.close(opened)
    return per_stream, sum(end.manifest.key == key(name) for end, name in zip(ends, names, strict=True))
