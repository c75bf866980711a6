"""Prints what children of a worker cost, and what they are spared: `python tests/bench/costs.py [NAME ...]`.

Each figure is taken in a fresh process with empty caches. Seconds are those of processors, of all processes that a step
starts, so that other work on the machine counts for less; seconds by the clock stand beside them.

- toolchain: what Inductor finds out about the C++ compiler, and the header that it precompiles before its first kernel.
- imports: what a child that compiles, and one that verifies, would import if it were not forked.
- children: how long a forked child takes to be ready, with and without a sandbox, and the memory of its own.
- digests: how fast one thread checks blobs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from compilefarm.worker.fork_server import ForkServer
from compilefarm.worker.pool import child_command
from compilefarm.worker.process import ChildProcess, ChildSettings
from compilefarm.worker.sandbox import Sandbox, open_sandbox

_CHILDREN = 9
_MEBIBYTE = 1 << 20
_COMPILER = "import torch; from compilefarm.builder.preloading import preload_compiler as p; p(with_triton=False)"
_LOADER = "import torch; from compilefarm.loader.programs import preload_loader as p; p(with_triton=False)"
_TRIALS = "from compilefarm.builder.build_trials import run_build_trials as f; f()"
_HEADERS = "from compilefarm.builder.headers import precompile_headers as f; f()"


def main(names: Sequence[str]) -> None:
    known: dict[str, Callable[[], None]] = {
        "toolchain": toolchain,
        "imports": imports,
        "children": lambda: asyncio.run(children()),
        "digests": digests,
    }
    for name in names or known:
        known[name]()


def toolchain() -> None:
    imported = _cost(_COMPILER)
    for name, code in (("trials of the C++ compiler", _TRIALS), ("first kernel, with its header", _HEADERS)):
        processor, clock = _cost(f"{_COMPILER}; {code}")
        print(f"{name}: {processor - imported[0]:.1f} s of processors, {clock - imported[1]:.1f} s by the clock")


def imports() -> None:
    for name, code in (("to compile", _COMPILER), ("to verify", _LOADER)):
        processor, clock = _cost(code)
        print(f"imports {name}: {processor:.1f} s of a processor, {clock:.1f} s by the clock")


async def children() -> None:
    for name, sandbox in (("no sandbox", None), ("sandbox", open_sandbox(interpreter=sys.executable, gpu=False))):
        server = ForkServer(child_command(sys.executable), environment={"CUDA_VISIBLE_DEVICES": ""})
        try:
            first, *others = [await _child(server, sandbox) for _ in range(1 + _CHILDREN)]
        finally:
            await server.close()
        seconds = statistics.median(each[0] for each in others)
        private = statistics.median(each[1] for each in others) / _MEBIBYTE
        print(
            f"child, {name}: ready after {seconds * 1e3:.0f} ms, the first {first[0]:.1f} s; {private:.0f} MiB its own"
        )


async def _child(server: ForkServer, sandbox: Sandbox | None) -> tuple[float, int]:
    """Seconds until a child is ready, and bytes of memory that it shares with nobody."""
    started = time.perf_counter()
    child = await ChildProcess.start(ChildSettings(server=server, sandbox=sandbox))
    try:
        await child.ready()
        seconds = time.perf_counter() - started
        return seconds, sum(map(_private_bytes, child._forked.pids()))
    finally:
        await child.end()


def _private_bytes(pid: int) -> int:
    lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def digests() -> None:
    content = os.urandom(256 * _MEBIBYTE)
    started = time.thread_time()
    hashlib.sha256(content).hexdigest()
    print(f"sha256: {len(content) / 1e6 / (time.thread_time() - started):.0f} MB/s of a processor")


def _cost(code: str) -> tuple[float, float]:
    """Seconds of processors, and by the clock, that a Python takes for some code, with what it starts."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor"))}
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


if __name__ == "__main__":
    main(sys.argv[1:])
