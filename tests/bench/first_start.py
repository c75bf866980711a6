"""What the start of a farm's workers is made of, by phase: `python tests/bench/first_start.py [--device cuda]`.

`compilefarm serve` is started three times, each time until it is ready: on a machine where nothing is known (an empty
home and an empty store); on another one of the same image (an empty home, the store of before); and on the first one
again. What the others take of the first is printed as a ratio, by the clock and in seconds of processors.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compilefarm.serving.farm import READY_LINE
from compilefarm.serving.safeguards import root_allowed

_FARM = (sys.executable, "-m", "compilefarm.cli.main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start of a farm.

    Attributes:
        clock_seconds: from its command until it was ready.
        processor_seconds: of the farm and all its processes, until it had ended again.
        phases: of its first worker, as the farm says.
    """

    clock_seconds: float
    processor_seconds: float
    phases: Mapping[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pool", choices=("local", "ray"), default="local")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        homes = {"nothing known": "one", "known in the store": "other", "known at home": "one"}
        starts = {}
        for name, home in homes.items():
            starts[name] = start(Path(folder, home), store=Path(folder, "store"), device=given.device, pool=given.pool)
            print(words_of(name, starts[name], first=starts["nothing known"]), flush=True)
    return 0


def start(home: Path, *, store: Path, device: str, pool: str) -> Start:
    """Starts a farm and ends it again.

    Args:
        home: where it keeps what it knows of the machine.
        store: of the farm.
        device: what its workers compile for.
        pool: where its workers are.
    """
    home.mkdir(exist_ok=True)
    options = (f"--store={store}", f"--state={home / 'state'}", f"--device={device}", f"--pool={pool}")
    command = [*_FARM, "serve", "--listen=127.0.0.1:0", *options, *root_allowed()]
    environ = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    before, began = _processor_seconds(), time.perf_counter()
    with _running(command, environ) as process:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith(READY_LINE)), "")
        if not ready:
            sys.exit("the farm did not start")
        clock_seconds = time.perf_counter() - began
        phases = _phases(ready.removeprefix(READY_LINE).strip())
        _wait_for_record(store)
    return Start(clock_seconds=clock_seconds, processor_seconds=_processor_seconds() - before, phases=phases)


def words_of(name: str, found: Start, *, first: Start) -> str:
    """A start in a line, beside the first one."""
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in found.phases.items())
    clock, processors = found.clock_seconds, found.processor_seconds
    return (
        f"{name}: ready after {clock:.1f} s ({clock / first.clock_seconds:.2f} of the first), {processors:.1f} s of "
        f"processors ({processors / first.processor_seconds:.2f}); seconds of the worker: {phases}"
    )


@contextmanager
def _running(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=dict(environ), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _phases(address: str) -> Mapping[str, float]:
    command = [*_FARM, "workers", f"--address={address}", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {phase["name"]: float(phase.get("seconds", 0)) for phase in told["workers"][0]["start"]}


def _wait_for_record(store: Path, *, seconds: float = 60.0) -> None:
    """Returns when what was found out is in the store, which nobody waits for otherwise."""
    until = time.monotonic() + seconds
    while not any("#" not in path.name for path in store.glob("toolchains/*/*")):
        if time.monotonic() > until:
            sys.exit("what the worker has found out did not come to the store")
        time.sleep(0.1)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
