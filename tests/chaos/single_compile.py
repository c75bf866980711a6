"""N identical requests, one compile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilefarm.service.testing import calling
from compilefarm.v1.admin_service_pb2 import StatusResponse

from .farm import ROOT, KilledFarm, running, with_root
from .programs import SIZE_BYTES
from .verdicts import Scale, Verdict, problems_of

_PROCESSES = 3
_WORKERS = 2


def run(scale: Scale) -> Verdict:
    """A crowd asks while the farm's workers are held at a gate. Those who asked first go away, half by cancelling and
    half by being killed, and a worker is killed once. Then the gate is opened.
    """
    callers, keys = (120, 10) if scale.short else (1000, 50)
    names = [f"graph_{number}" for number in range(keys)]
    gate, ledger = scale.folder / "gate", scale.folder / "ledger"
    os.mkfifo(gate)
    child = (f"--gate={gate}", f"--ledger={ledger}", f"--size={SIZE_BYTES}")
    with (
        running(scale.folder / "farm", options=(f"--slots={_WORKERS}",), child=child, cluster=scale.cluster) as farm,
        contextlib.ExitStack() as crowds,
    ):
        early = [crowds.enter_context(_crowd(farm, keys // 2, part)) for part in (names[::2], names[1::2])]
        late = callers - keys
        shares = [late // _PROCESSES + (number < late % _PROCESSES) for number in range(_PROCESSES)]
        others = [crowds.enter_context(_crowd(farm, share, names)) for share in shares]
        _tell(early[0], "cancel")
        early[1].kill()
        _kill_a_worker(farm, ledger)
        opened = os.open(gate, os.O_RDWR)
        seen: Counter[str] = Counter()
        for crowd in others:
            _tell(crowd, "wait")
        for crowd in others:
            seen.update(json.loads(_listen(crowd)))
        os.close(opened)
        status = asyncio.run(_status(farm.address))
    compiles = Counter(line.split()[0] for line in ledger.read_text().splitlines())
    return Verdict(
        done=f"{callers} callers of {_PROCESSES + 2} processes asked for {keys} graphs; those who asked first left "
        f"({keys // 2} cancelled, {keys // 2} killed), 1 worker was killed",
        seen=f"{compiles['finished']} compiles, {compiles['begun'] - compiles['finished']} more begun and lost; "
        + ", ".join(f"{count} {word}" for word, count in sorted(seen.items())),
        problems=problems_of(
            one_compile_for_each_graph=compiles["finished"] == status.counters.compiled == keys,
            one_more_was_begun_and_lost_with_its_worker=compiles["begun"] == keys + 1,
            everybody_who_stayed_got_the_right_program=set(seen) <= {"compiled", "joined", "hit"}
            and seen.total() == callers - keys,
        ),
    )


@contextlib.contextmanager
def _crowd(farm: KilledFarm, callers: int, names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.crowd", farm.address, str(callers), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=with_root(os.environ),
    )
    with process:
        try:
            assert _listen(process) == "accepted\n", "the farm did not accept everybody"
            yield process
        finally:
            process.kill()


def _tell(crowd: subprocess.Popen[str], word: str) -> None:
    assert crowd.stdin is not None
    crowd.stdin.write(f"{word}\n")
    crowd.stdin.flush()


def _listen(crowd: subprocess.Popen[str]) -> str:
    assert crowd.stdout is not None
    return crowd.stdout.readline()


def _kill_a_worker(farm: KilledFarm, ledger: Path) -> None:
    """Kills a child that has a job, once every worker has one."""
    while not ledger.exists() or len(ledger.read_text().splitlines()) < _WORKERS:
        asyncio.run(_status(farm.address))
    # Next children are forked when these have ended.
    os.kill(farm.last_children()[0], signal.SIGKILL)


async def _status(address: str) -> StatusResponse:
    async with calling(address) as calls:
        return await calls.status()
