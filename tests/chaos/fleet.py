"""Pods that come and go: `python -m tests.chaos.fleet ADDRESS SECONDS TIMEOUT THREADS SEED`.

Each thread runs one pod after the other, with the graphs of one of its models, until the time is up and the last pod is
done. Says as JSON, a line for each, what every graph was given.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from time import monotonic

from .pods import Got, run_pod

_GRAPHS = 6
_CONNECT_TIMEOUT_SECONDS = 2.0
# A pod computes something, too: without this those that have no farm would be most of all pods.
_SECONDS_BETWEEN_PODS = 1.0
# Every so many pods a thread has a model that nobody has seen.
_PODS_PER_MODEL = 3


def main(address: str, seconds: float, timeout_seconds: float, threads: int, seed: int) -> None:
    end = monotonic() + seconds
    print_lock = threading.Lock()
    never = Event()

    def run(thread: int) -> None:
        random, pods = Random(seed + thread), 0
        while monotonic() < end:
            model = random.randrange(pods // _PODS_PER_MODEL + 1)
            pods += 1
            # Two threads have each model, so that pods meet.
            names = [f"model_{seed}_{thread // 2}_{model}_{number}" for number in range(_GRAPHS)]
            got = run_pod(
                address, names, timeout_seconds=timeout_seconds, connect_timeout_seconds=_CONNECT_TIMEOUT_SECONDS
            )
            with print_lock:
                _say(got)
            never.wait(_SECONDS_BETWEEN_PODS)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(run, range(threads)):
            pass


def _say(got: list[Got]) -> None:
    for each in got:
        print(json.dumps(dataclasses.asdict(each)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
