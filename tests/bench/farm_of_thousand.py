"""What a gateway does with a thousand workers and a hundred thousand jobs: `python tests/bench/farm_of_thousand.py`.

The gateway, its store and its callers are the real ones, in processes of their own; its workers follow a script, as if
on other machines: a compile takes its time and no processor. Callers keep more jobs under way than there are workers,
so that a part of them always waits. Meanwhile one caller asks for an artifact that is stored, again and again.

Every job is another graph and every artifact is stored. `--profile FILE` says what the gateway's thread spends time on.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from compilefarm.core.pool import Artifact, Assignment  # noqa: E402
from compilefarm.service.config import GatewayConfig  # noqa: E402
from compilefarm.service.garbage import collect_seldom  # noqa: E402
from compilefarm.service.testing import (  # noqa: E402
    ENVIRONMENT,
    Calls,
    Refused,
    ScriptedPool,
    artifact_of,
    calling,
    sample_job,
    serving,
)
from compilefarm.service.testing.pool import OnPhase  # noqa: E402
from compilefarm.store.opening import open_store  # noqa: E402
from compilefarm.v1.compile_service_pb2 import Outcome  # noqa: E402
from compilefarm.v1.job_pb2 import Phase  # noqa: E402
from tests.hostile.callers import listing  # noqa: E402
from tests.memory import most_resident_bytes  # noqa: E402

# Each process of callers has its own connection, and gRPC bounds the streams of one.
_CALLERS_OF_PROCESS = 500
_PAUSE_SECONDS = 0.02
_AGAIN_SECONDS = 1.0
_CROWD, _PROBER = "crowd", "prober"
# How gRPC ends calls that are too many for it.
_AGAIN = ("UNAVAILABLE", "CANCELLED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--workers", type=int, default=1000)
    option("--jobs", type=int, default=100_000)
    option("--callers", type=int, default=2000, help="each waits for its job before it asks for the next")
    option("--seconds", type=float, default=1.0, help="that a compile takes")
    option("--store", default="memory:", help="of the gateway; in memory it is part of the gateway's")
    option("--profile", type=Path, metavar="FILE")
    option("--role", choices=("gateway", "callers"), help=argparse.SUPPRESS)
    option("--address", help=argparse.SUPPRESS)
    option("--first", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "gateway":
        serve(arguments)
    elif arguments.role == "callers":
        asyncio.run(call(arguments))
    else:
        measure(arguments)


def serve(arguments: argparse.Namespace) -> None:
    """The gateway's process; ends when its input does."""
    profile = cProfile.Profile() if arguments.profile else None
    if profile is not None:
        profile.enable()
    asyncio.run(_serve(arguments))
    if profile is not None:
        profile.disable()
        profile.dump_stats(arguments.profile)


async def _serve(arguments: argparse.Namespace) -> None:
    async def compile_for_a_while(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        del worker
        pool.assignments.clear()
        on_phase(Phase.PHASE_COMPILING)
        await asyncio.sleep(arguments.seconds)
        return artifact_of(assignment)

    pool = ScriptedPool(compile_for_a_while, environments=[ENVIRONMENT] * arguments.workers)
    config = GatewayConfig(
        listen="127.0.0.1:0", max_queued_jobs=arguments.jobs, max_queued_jobs_of_tenant=arguments.jobs, verify="off"
    )
    store = await open_store(arguments.store, cache_bytes=2**26)
    with tempfile.TemporaryDirectory() as folder:
        # What one caller takes is bounded: whoever asks for hits is another one than the crowd.
        callers = Path(folder, "callers.toml")
        await asyncio.to_thread(callers.write_text, listing({_CROWD: "compile", _PROBER: "compile"}))
        async with serving(pool=pool, store=store, config=replace(config, auth_file=str(callers))) as gateway:
            collect_seldom()
            print(gateway.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)


async def call(arguments: argparse.Namespace) -> None:
    """A process of callers; prints how many jobs were compiled, and how often a call ended with each of _AGAIN."""
    numbers = iter(range(arguments.first, arguments.first + arguments.jobs))
    counts: Counter[str] = Counter()
    async with calling(arguments.address, token=_CROWD) as calls:
        # They come one after the other, as pods of a rollout do.
        callers = (
            _ask(calls, numbers, counts=counts, after=place * _PAUSE_SECONDS) for place in range(arguments.callers)
        )
        await asyncio.gather(*callers)
    print(counts["compiled"], *(counts[status] for status in _AGAIN))


async def _ask(calls: Calls, numbers: Iterator[int], *, counts: Counter[str], after: float) -> None:
    await asyncio.sleep(after)
    for number in numbers:
        finished = None
        while finished is None:
            try:
                finished = await calls.finish(sample_job(f"torch.f{number}"))
            except Refused as refused:
                if refused.status not in _AGAIN:
                    raise
                counts[refused.status] += 1
                await asyncio.sleep(_AGAIN_SECONDS)
        counts["compiled"] += finished.outcome == Outcome.OUTCOME_COMPILED


def measure(arguments: argparse.Namespace) -> None:
    """Measures, and prints what was seen."""
    options = [f"--workers={arguments.workers}", f"--seconds={arguments.seconds}", f"--store={arguments.store}"]
    options += [f"--profile={arguments.profile}"] if arguments.profile else []
    with _program("gateway", *options, f"--jobs={arguments.jobs}") as gateway:
        assert gateway.stdout is not None
        address = gateway.stdout.readline().strip()
        before = most_resident_bytes(gateway.pid)
        idle = asyncio.run(_hits(address, until=lambda count: count >= 500))
        started, processor = time.perf_counter(), _processor_seconds(gateway.pid)
        crowd = _crowd(arguments, address)
        try:
            hits = asyncio.run(_hits(address, until=lambda _: _have_ended(crowd)))
        except BaseException:
            # They would ask a gateway for ever that is gone.
            for each in crowd:
                each.kill()
            raise
        seconds = time.perf_counter() - started
        processor = _processor_seconds(gateway.pid) - processor
        said = [each.communicate()[0].split() for each in crowd]
        compiled, *again = (sum(int(words[place]) for words in said) for place in range(1 + len(_AGAIN)))
        memory = most_resident_bytes(gateway.pid)
        assert compiled == arguments.jobs, f"{compiled} of {arguments.jobs} jobs were compiled"
    what = f"{arguments.workers:,} workers, {arguments.jobs:,} jobs of {arguments.seconds} s"
    print(f"{what}, {arguments.callers:,} callers")
    milliseconds = 1000 * processor / arguments.jobs
    print(f"{arguments.jobs / seconds:.0f} jobs/s, {milliseconds:.2f} ms of the gateway's processor for each")
    ended = ", ".join(f"{count} {status}" for count, status in zip(again, _AGAIN, strict=True))
    print(f"asked again, as pods do: {ended}")
    print(f"memory of the gateway: {before / 1e6:.0f} MB at the start, {memory / 1e6:.0f} MB at most")
    print(f"a hit, nobody else asking: {_words(idle)}")
    print(f"a hit meanwhile: {_words(hits)}")


def _crowd(arguments: argparse.Namespace, address: str) -> list[subprocess.Popen[str]]:
    processes = -(-arguments.callers // _CALLERS_OF_PROCESS)
    shares = [len(range(number, arguments.jobs, processes)) for number in range(processes)]
    firsts = itertools.accumulate(shares, initial=0)
    callers = arguments.callers // processes
    return [
        _start("callers", f"--address={address}", f"--jobs={jobs}", f"--first={first}", f"--callers={callers}")
        for jobs, first in zip(shares, firsts, strict=False)
    ]


def _have_ended(processes: Sequence[subprocess.Popen[str]]) -> bool:
    return all(process.poll() is not None for process in processes)


async def _hits(address: str, *, until: Callable[[int], bool]) -> list[float]:
    """Seconds of lookups of an artifact that is stored, one after the other with pauses."""
    job, seconds = sample_job("torch.relu"), list[float]()
    async with AsyncExitStack() as stack:
        calls = await stack.enter_async_context(calling(address, token=_PROBER))
        await calls.finish(job)
        while not until(len(seconds)):
            started = time.perf_counter()
            await calls.lookup(job)
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(_PAUSE_SECONDS)
    return seconds


def _words(seconds: list[float]) -> str:
    hundredths = statistics.quantiles(seconds, n=100)
    return f"p50 {1000 * hundredths[49]:.1f} ms, p99 {1000 * hundredths[98]:.1f} ms, {len(seconds):,} asked"


def _processor_seconds(pid: int) -> float:
    """User and system time of a process, of all its threads."""
    fields = re.sub(r".*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
    return (int(fields[11]) + int(fields[12])) / 100


def _start(role: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, f"--role={role}", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def _program(role: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = _start(role, *options)
    try:
        yield process
    finally:
        process.communicate()


if __name__ == "__main__":
    main()
