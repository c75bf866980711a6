"""No acknowledged result lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import digest_of
from compilefarm.core.keys import key_of
from compilefarm.service.testing import Calls, Refused, calling, sample_job
from compilefarm.v1.compile_service_pb2 import Priority

from .farm import ROOT, with_root
from .verdicts import Scale, Verdict, problems_of

_STRIDE_WHEN_SHORT = 9
# What a prewarm that was accepted gets to be done after a restart; it takes a moment.
_PATIENCE_SECONDS = 60.0
# What all that is asked of one gateway may take; it is a matter of seconds.
_MOST_SECONDS = 150.0
_STEPS = {"mkdir", "open", "fsync", "link", "unlink"}


@dataclass
class _Acknowledged:
    finished: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)


class _Gateways:
    """Gateways on one folder, one after the other."""

    def __init__(self, program: Process) -> None:
        self._program = program
        self.survived = False

    @asynccontextmanager
    async def start(self, steps: str) -> AsyncIterator[Calls]:
        """One, which is killed in the end if it has not been before."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{steps}\n".encode())
        said = await self._listen()
        try:
            # Otherwise a call that is never answered ends with the test's own timeout, which does not say where.
            async with asyncio.timeout(_MOST_SECONDS), calling(said["address"]) as calls:
                yield calls
                with contextlib.suppress(Refused):
                    await calls.status()
                    self.survived = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(said["process"], signal.SIGKILL)
        assert await self._listen() == {"code": -signal.SIGKILL}, "a gateway ended otherwise than it was killed"

    async def _listen(self) -> dict[str, Any]:
        assert self._program.stdout is not None
        async with asyncio.timeout(_MOST_SECONDS):
            said: dict[str, Any] = json.loads(await self._program.stdout.readline())
        return said


def run(scale: Scale) -> Verdict:
    """Kills the gateway before every step on the disk that it takes for a compile and for a prewarm."""
    return asyncio.run(_run(scale))


async def _run(scale: Scale) -> Verdict:
    stride = _STRIDE_WHEN_SHORT if scale.short else 1
    told = _Acknowledged()
    lost: list[str] = []
    restarts = 0
    async with _program(scale.folder) as gateways:
        for steps in itertools.count(0, stride):
            here = _Acknowledged()
            gateways.survived = False
            async with gateways.start(str(steps)) as calls:
                with contextlib.suppress(Refused):
                    await _ask(calls, steps, told=here)
            if gateways.survived:
                break
            restarts += 1
            async with gateways.start("whole") as calls:
                lost += await _find_lost(calls, told=here)
                # Whoever was not told asks again, and finds nothing in the way.
                lost += await _find_lost(calls, told=await _ask_again(calls, steps))
            told.finished += here.finished
            told.accepted += here.accepted
        async with gateways.start("whole") as calls:
            lost += await _find_lost(calls, told=told)
            damaged = (await calls.status()).store
    stops = Counter(line.removeprefix("before ") for line in (scale.folder / "stops").read_text().splitlines())
    return Verdict(
        done=f"{restarts} gateways killed before a step of a write ("
        + ", ".join(f"{count} {step}" for step, count in sorted(stops.items()))
        + ") and started again",
        seen=f"{len(told.finished)} results and {len(told.accepted)} prewarms were acknowledged before the kill, "
        f"{len(lost)} of them lost",
        problems=[
            *(f"lost: {each}" for each in lost),
            *problems_of(
                every_kind_of_step_was_met=scale.short or set(stops) >= _STEPS,
                some_were_acknowledged=bool(told.finished and told.accepted),
                # Two threads may come to their steps at the same moment.
                each_was_killed_at_its_step=stops.total() >= restarts,
                nothing_is_damaged=damaged.corrupt_blobs == damaged.corrupt_manifests == 0,
            ),
        ],
    )


@asynccontextmanager
async def _program(folder: Path) -> AsyncIterator[_Gateways]:
    with (folder / "gateways.log").open("w") as log:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.stopped_gateway",
            str(folder),
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            cwd=ROOT,
            env=with_root(os.environ),
        )
    try:
        yield _Gateways(program)
    finally:
        assert program.stdin is not None
        program.stdin.close()
        await program.wait()


async def _ask(calls: Calls, number: int, *, told: _Acknowledged) -> None:
    wanted, later = f"torch.wanted_{number}", f"torch.later_{number}"
    await calls.finish(sample_job(wanted))
    told.finished.append(wanted)
    watch = await calls.watch(sample_job(later), priority=Priority.PRIORITY_PREWARM)
    told.accepted.append(later)
    await watch.finish()
    told.finished.append(later)


async def _ask_again(calls: Calls, number: int) -> _Acknowledged:
    told = _Acknowledged()
    await _ask(calls, number, told=told)
    return told


async def _find_lost(calls: Calls, *, told: _Acknowledged) -> list[str]:
    """Those that cannot be had whole; prewarms get a while."""
    lost = [target for target in told.finished if not await _is_whole(calls, target)]
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for target in told.accepted:
                while not await _is_whole(calls, target):
                    pass
    except TimeoutError:
        lost.append(f"{target}, a prewarm")
    return lost


async def _is_whole(calls: Calls, target: str) -> bool:
    job = sample_job(target)
    try:
        manifest = await calls.lookup(job)
        contents = [await calls.read(blob.digest) for blob in blobs_of(manifest)]
    except Refused:
        return False
    # As tells compilefarm.service.testing.artifact_of.
    is_right = contents[0] == f"program of {key_of(job).text}".encode()
    return is_right and [digest_of(content) for content in contents] == [blob.digest for blob in blobs_of(manifest)]
