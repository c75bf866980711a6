"""Prints what starts without tracing cost, beside what they spare: `python -m tests.bench.starts [NAME ...]`.

Each figure is the median over fresh processes that take turns. Seconds are those of the processor of the process, so
that other work on the machine counts for less; seconds by the clock stand beside them where something waits.

- verification: comparing and building guards of models of transformers, beside tracing them.
- miss: a first result with packages in use and none stored, beside one without packages.
- warm: a first result where imports began in a thread while weights are read, beside one without.
- size: a package of MiniLM, beside the request of its graph.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from compilefarm.core.signatures import new_signing_key

_ROUNDS = 5


def main(names: Sequence[str]) -> None:
    known: dict[str, Callable[[], None]] = {"verification": verification, "miss": miss, "warm": warm, "size": size}
    for name in names or known:
        known[name]()


def verification() -> None:
    with tempfile.TemporaryDirectory() as folder:
        traced = _run("verify", folder)
        found = [_run("verify", folder) for _ in range(_ROUNDS)]
    for name, first in traced.items():
        runs = [each[name] for each in found]
        guards, verified, built = (
            statistics.median(run[what] for run in runs) for what in ("guards", "verify_seconds", "build_seconds")
        )
        share = verified / first["trace_seconds"]
        print(f"verification of {name}: {1000 * verified:.1f} ms for {guards:.0f} guards, {share:.3f} of tracing them")
        print(f"  {2e6 * verified / guards:.1f} ms for 2,000; torch builds them in {1000 * built:.1f} ms more")


def miss() -> None:
    key = new_signing_key().public.text
    with _farm() as address:
        ways = {
            "packages off": {},
            "packages on, none stored": {"COMPILEFARM_DYNAMO": "reuse", "COMPILEFARM_TRUSTED_PACKAGE_KEYS": key},
        }
        _compare("a miss", "first", ways, {"COMPILEFARM_ADDRESS": address, "COMPILEFARM_ON_FAILURE": "eager"})


def warm() -> None:
    with _farm() as address:
        ways = {"as always": {}, "COMPILEFARM_WARM": {"COMPILEFARM_WARM": "yes"}}
        _compare("imports", "loading", ways, {"COMPILEFARM_ADDRESS": address, "COMPILEFARM_ON_FAILURE": "eager"})


def size() -> None:
    found = _run("size", "")
    print(
        f"a package of MiniLM: {found['package_bytes'] / 1000:.1f} kB, of which {found['request_bytes'] / 1000:.1f} kB"
        f" are the request of its graph: {found['package_bytes'] / found['request_bytes']:.2f} times that"
    )


def _compare(what: str, mode: str, ways: Mapping[str, Mapping[str, str]], variables: Mapping[str, str]) -> None:
    rounds = [{name: _run(mode, "", **variables, **own) for name, own in ways.items()} for _ in range(_ROUNDS)]
    first, second = ways
    for name in ways:
        seconds, clock = (statistics.median(each[name][unit] for each in rounds) for unit in ("processor", "clock"))
        print(f"{what}, {name}: {seconds:.3f} s of a processor, {clock:.3f} s by the clock")
    for unit in ("processor", "clock"):
        differences = [each[second][unit] - each[first][unit] for each in rounds]
        ratio = statistics.median(each[second][unit] / each[first][unit] for each in rounds)
        print(f"{what}: {1000 * statistics.median(differences):+.1f} ms by {unit}, {ratio:.3f} of {first!r}")


@contextmanager
def _farm() -> Any:
    import asyncio

    from compilefarm.service.testing import serving_in_thread
    from compilefarm.store.opening import open_caches

    with tempfile.TemporaryDirectory() as folder:
        store = asyncio.run(open_caches(folder, size_limit_bytes=50_000_000, lifetime_seconds=3600))
        with serving_in_thread(caches=store) as address:
            yield address


def _run(mode: str, argument: str, **variables: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.starting_process", mode, argument]
    # The models are the processor's. Whoever asks for GPUs first starts CUDA: 0.2 s with one of them, 1 s with four.
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} has failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
