"""Prints what starts without tracing cost, beside what they spare: `python -m tests.bench.starts [NAME ...]`.

Each figure is the median over fresh processes that take turns. Seconds are those of the processor of the process, so
that other work on the machine counts for less; seconds by the clock stand beside them where something waits.

- verification: comparing and building guards of models of transformers, beside tracing them. Each model has a process
  of its own, which has looked for its key before, as a pod has.
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
_GUARDS = 2000
# Layers of each model with which it has fewer and more of them, at both ends of what is supported.
_AROUND_2000_GUARDS = {"BERT": (6, 8), "Llama": (7, 11)}


def main(names: Sequence[str]) -> None:
    known: dict[str, Callable[[], None]] = {"verification": verification, "miss": miss, "warm": warm, "size": size}
    for name in names or known:
        known[name]()


def verification() -> None:
    cases = [(name, layers) for name, sizes in _AROUND_2000_GUARDS.items() for layers in sizes]
    with tempfile.TemporaryDirectory() as folder:
        places = {case: os.path.join(folder, "-".join(map(str, case))) for case in cases}
        for place in places.values():
            os.mkdir(place)
        traced, *rounds = [
            {case: _run("verify", places[case], case[0], str(case[1])) for case in cases} for _ in range(1 + _ROUNDS)
        ]
    for case in cases:
        _tell_verified(case, traced[case], [each[case] for each in rounds])
    for name, sizes in _AROUND_2000_GUARDS.items():
        # By no proportion: what the classes of a model take, they take once, however many layers there are.
        between = [_between(*(each[name, layers] for layers in sizes)) for each in rounds]
        print(
            f"verification of {name}: {1000 * statistics.median(between):.1f} ms (least {1000 * min(between):.1f}) for"
            f" {_GUARDS:,} guards, on the line between both"
        )


def _between(fewer: Mapping[str, float], more: Mapping[str, float]) -> float:
    """Seconds in which so many guards are verified, by two processes of one round."""
    assert fewer["guards"] <= _GUARDS <= more["guards"], "the models are too small, or too large"
    share = (_GUARDS - fewer["guards"]) / (more["guards"] - fewer["guards"])
    return fewer["verify_seconds"] + share * (more["verify_seconds"] - fewer["verify_seconds"])


def _tell_verified(case: tuple[str, int], traced: Mapping[str, float], runs: Sequence[Mapping[str, float]]) -> None:
    units = ("guards", "verify_seconds", "build_seconds", "key_seconds")
    guards, verified, built, key = (statistics.median(run[what] for run in runs) for what in units)
    least = min(run["verify_seconds"] for run in runs)
    print(
        f"{case[0]} of {case[1]} layers: {1000 * verified:.1f} ms (least {1000 * least:.1f}) for {guards:.0f} guards,"
        f" {verified / traced['trace_seconds']:.3f} of tracing; {2e6 * verified / guards:.1f} for 2,000 by proportion"
    )
    print(f"  the key of packages takes {1000 * key:.1f} ms before; torch builds guards in {1000 * built:.1f} after")


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
    found = _run("size")
    print(
        f"a package of MiniLM: {found['package_bytes'] / 1000:.1f} kB, of which {found['request_bytes'] / 1000:.1f} kB"
        f" are the request of its graph: {found['package_bytes'] / found['request_bytes']:.2f} times that"
    )


def _compare(what: str, mode: str, ways: Mapping[str, Mapping[str, str]], variables: Mapping[str, str]) -> None:
    rounds = [{name: _run(mode, **variables, **own) for name, own in ways.items()} for _ in range(_ROUNDS)]
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


def _run(mode: str, *arguments: str, **variables: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.starting_process", mode, *arguments]
    # The models are the processor's. Whoever asks for GPUs first starts CUDA: 0.2 s with one of them, 1 s with four.
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{mode} has failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
