"""Never a wrong byte."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from compilefarm.service.testing import calling
from compilefarm.store.layout import BLOBS, MANIFESTS
from compilefarm.v1.admin_service_pb2 import StatusResponse

from .farm import KilledFarm, running
from .pods import Got, run_pod
from .programs import SIZE_BYTES
from .verdicts import Scale, Verdict, problems_of

_PODS = 4
_SEED = 20240501


def run(scale: Scale) -> Verdict:
    """Damages files of the store, a few at a time, and has pods ask for everything after each time: first a gateway
    that has some of it in memory, so that it serves what is right and notices less, then one that has to read it all.
    """
    rounds, graphs, files = (2, 6, 6) if scale.short else (25, 40, 24)
    random = Random(_SEED)
    names = [f"graph_{number}" for number in range(graphs)]
    injected: Counter[str] = Counter()
    counted: list[StatusResponse] = []
    got: list[Got] = []
    with running(scale.folder / "farm", child=(f"--size={SIZE_BYTES}",), cluster=scale.cluster) as farm:
        store = scale.folder / "farm" / "store"
        _ask_for_all(farm, names)
        for _ in range(rounds):
            injected.update(_damage(store, files, random=random))
            got += _ask_for_all(farm, names)
            counted.append(asyncio.run(_status(farm.address)))
            farm.kill()
            farm.start()
            got += _ask_for_all(farm, names)
        whole = _ask_for_all(farm, names)
        counted.append(asyncio.run(_status(farm.address)))
    blobs = sum(status.store.corrupt_blobs for status in counted)
    manifests = sum(status.store.corrupt_manifests for status in counted)
    outcomes = Counter(each.outcome for each in got)
    return Verdict(
        done=f"{injected.total()} injections into {graphs} artifacts in {rounds} rounds: "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(injected.items()))
        + f"; {len(got)} requests, half of them to a gateway just started",
        seen=f"{blobs + manifests} detections ({blobs} blobs, {manifests} manifests); "
        + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())),
        problems=problems_of(
            detections_are_injections=blobs + manifests == injected.total(),
            every_answer_is_right=all(each.right for each in got),
            every_answer_is_of_the_farm=all(each.is_from_farm for each in got),
            no_compile_failed=all(status.counters.failed == 0 for status in counted),
            all_is_whole_in_the_end=all(each.right and each.outcome == "hit" for each in whole),
        ),
    )


def _ask_for_all(farm: KilledFarm, names: Sequence[str]) -> list[Got]:
    # Each graph by one pod: two that find the same damage at the same time are told of it once.
    shares = [names[number::_PODS] for number in range(_PODS)]
    with ThreadPoolExecutor(_PODS) as threads:
        return [got for gots in threads.map(lambda share: run_pod(farm.address, share), shares) for got in gots]


def _damage(store: Path, files: int, *, random: Random) -> Counter[str]:
    """Damages that many files at most; returns how many were damaged how."""
    every = sorted(path for area in (BLOBS, MANIFESTS) for path in (store / area).rglob("*") if path.is_file())
    chosen = random.sample(every, min(files, len(every)))
    injected: Counter[str] = Counter()
    while chosen:
        path = chosen.pop()
        kind = random.choice(["bit flips", "truncations", "swaps"])
        if kind == "swaps" and chosen:
            other = chosen.pop()
            mine, theirs = path.read_bytes(), other.read_bytes()
            path.write_bytes(theirs)
            other.write_bytes(mine)
            injected[kind] += 2
        else:
            kind = "bit flips" if kind == "swaps" else kind
            path.write_bytes(_CHANGES[kind](path.read_bytes(), random))
            injected[kind] += 1
    return injected


def _flip_a_bit(content: bytes, random: Random) -> bytes:
    position, bit = random.randrange(len(content)), 1 << random.randrange(8)
    return content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


_CHANGES: dict[str, Callable[[bytes, Random], bytes]] = {"bit flips": _flip_a_bit, "truncations": _truncate}


async def _status(address: str) -> StatusResponse:
    async with calling(address) as calls:
        return await calls.status()
