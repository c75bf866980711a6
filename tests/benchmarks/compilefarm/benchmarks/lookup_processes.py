"""Processes that look entries up in torch's remote cache of graphs: `python -m compilefarm.benchmarks.lookup_processes
PROCESSES BYTES SERVERS` prints the seconds of each lookup as JSON: "first" of a process that asks before others,
"others" of processes that ask at once, and "without work" of processes that do nothing in between; and what a lookup of
"others" takes of a processor, "processor of the process" and "processor of the server" (of SERVERS, process ids with
commas). torch's switches and variables say where the entries lie.
"""

from __future__ import annotations

import base64
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch._inductor.remote_cache import create_cache

_LOOKUPS = 20
# What torch works before each lookup: it asks for the entry of AOTAutograd's cache, then for that of the graph within,
# and traces or loads before it asks for the next two. Caches full, eight functions of up to eight kernels, torch 2.15,
# two cores: the second of two came 0.9 to 1.1 ms after the first, and the next one 5 ms later or more.
_WORK_SECONDS = (0.005, 0.001)


def main(processes: int, entry_bytes: int, servers: Sequence[int]) -> None:
    """Fills the cache from a process of its own, so that this one has no connection that is forked."""
    # torch is imported once for all.
    context: Any = multiprocessing.get_context("fork")
    # Nobody has asked for these before.
    keys = [f"lookup-{os.getpid()}-{number}" for number in range(_LOOKUPS)]
    _all_of([_started(context, _fill, keys, entry_bytes)])
    first, _ = _ask(context, keys, processes=1, work_seconds=_WORK_SECONDS)
    before = _processor_seconds(servers)
    others, processor_seconds = _ask(context, keys, processes=processes, work_seconds=_WORK_SECONDS)
    served = _processor_seconds(servers) - before
    without_work, _ = _ask(context, keys, processes=processes, work_seconds=(0.0,))
    asked = {
        "first": first,
        "others": others,
        "without work": without_work,
        "processor of the process": [processor_seconds / len(others)],
        "processor of the server": [served / len(others)],
    }
    print(json.dumps(asked))


def _ask(context: Any, keys: list[str], *, processes: int, work_seconds: Sequence[float]) -> tuple[list[float], float]:
    """The seconds of each lookup, and of a processor for all of them together."""
    start = context.Barrier(processes)
    answered = _all_of([_started(context, _look_up, keys, work_seconds, start) for _ in range(processes)])
    return list(itertools.chain.from_iterable(seconds for seconds, _ in answered)), sum(spent for _, spent in answered)


def _started(context: Any, task: Callable[..., Any], *parameters: Any) -> Connection:
    """Begins a task in a process, and returns where its answer comes, or an end if it fails."""
    answer: Connection
    answer, sending = context.Pipe(duplex=False)
    # It ends with this process: others wait for one that has failed.
    context.Process(target=_send, args=(sending, task, *parameters), daemon=True).start()
    sending.close()
    return answer


def _send(sending: Connection, task: Callable[..., Any], *parameters: Any) -> None:
    sending.send(task(*parameters))


def _all_of(answers: list[Connection]) -> list[Any]:
    """The answers of processes, as they come."""
    answered = list[Any]()
    while len(answered) < len(answers):
        for answer in wait([each for each in answers if not each.closed]):
            assert isinstance(answer, Connection)
            try:
                answered.append(answer.recv())
            except EOFError:
                sys.exit("one of the processes has failed")
            answer.close()
    return answered


def _processor_seconds(processes: Sequence[int]) -> float:
    """Seconds of a processor that the threads of processes have had."""
    # Nanoseconds; those of `stat` are counted in hundredths of a second.
    threads = itertools.chain.from_iterable(Path(f"/proc/{process}/task").glob("*/schedstat") for process in processes)
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _fill(keys: list[str], entry_bytes: int) -> None:
    """As torch does: it asks for what it then compiles."""
    cache = _open()
    for key in keys:
        assert cache.get(key) is None
        cache.put(key, {"data": base64.b64encode(os.urandom(entry_bytes * 3 // 4)).decode(), "time_taken_ms": 1})


def _look_up(keys: list[str], work_seconds: Sequence[float], start: Any) -> tuple[list[float], float]:
    """The seconds of each lookup, and of a processor for all of them together."""
    cache = _open()
    # Connections are made before; no entry comes along.
    assert cache.get("absent") is None
    start.wait()
    # Of all threads; some of what comes in is read by threads while this one works.
    seconds, worked, before = list[float](), 0.0, time.process_time()
    for key, work in zip(keys, itertools.cycle(work_seconds), strict=False):
        worked += _work(work)
        started = time.perf_counter()
        assert cache.get(key) is not None, f"{key} was not found"
        seconds.append(time.perf_counter() - started)
    return seconds, time.process_time() - before - worked


def _work(seconds: float) -> float:
    """Keeps Python's lock, as torch does while it traces; returns the seconds of a processor that it had."""
    until, before = time.perf_counter() + seconds, time.thread_time()
    while time.perf_counter() < until:
        pass
    return time.thread_time() - before


def _open() -> Any:
    """As Inductor opens it (torch/_inductor/codecache.py: FxGraphCache)."""
    return create_cache("fx-graph-v1", False, "FbRemoteFxGraphCache", "RemoteFxGraphCache")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(server) for server in sys.argv[3].split(",")])
