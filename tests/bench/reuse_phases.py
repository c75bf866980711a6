"""Prints where the time of a start without tracing goes: `python -m tests.bench.reuse_phases [MODEL ...]`.

A farm is started, one process publishes, and fresh processes reuse, without a C compiler: each from the call of
`torch.compile` to the first result, with torch imported, the model made and CUDA started before. What stands beside a
phase is what passed in it and in no phase within it, the median over the processes: by the clock, and of the processor
in the thread that waits for the result. Imports are told by the library that is imported, wherever that happens.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib._bootstrap as imports  # type: ignore[import-not-found]
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What is a phase: functions by the module in which they are looked up.
PHASES: Mapping[str, Mapping[str, str]] = {
    "compilefarm.packages.lookup_keys": {"lookup_key": "key of packages"},
    "compilefarm.client.farm_packages": {
        "FarmPackages._receive": "packages from the farm",
        "FarmPackages._read": "reading packages",
    },
    "compilefarm.graph.ambient": {"require_own_torch": "whether torch is its own"},
    "compilefarm.client.starts": {"Starts._begin": "beginning to fetch the artifact", "Starts.start": "other of ours"},
    "compilefarm.reuse.installation": {
        "verify_process": "comparing the process",
        "verify_guards": "comparing guards",
        "build_guards": "torch builds guards",
        "install": "installing",
    },
    "compilefarm.client.farm_programs": {"_delivered": "waiting for the artifact"},
    "compilefarm.client.loading": {"Loader.load": "loading the artifact"},
    "compilefarm.client.loaded_programs": {"LoadedProgram.__call__": "first call of the program"},
}
# Libraries whose imports are told by their second name as well.
_LARGE = frozenset({"torch", "compilefarm"})
_PATH_WITHOUT_COMPILER = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["minilm"], help="of compilefarm.benchmarks.models")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--warm", action="store_true", help="with COMPILEFARM_WARM: what it imports passes while the model is made"
    )
    parser.add_argument("--process", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.process is not None:
        found = measure(given.models[0], device=given.device, mode=given.mode)
        given.process.write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as folder, _farm(Path(folder), device=given.device) as variables:
        for model in given.models:
            runs = [_run(model, given, variables=variables, folder=Path(folder)) for _ in range(given.rounds + 1)]
            print(f"{model} on {given.device}, of {given.rounds} processes", flush=True)
            # The first has published.
            for line in lines_of(runs[1:]):
                print(line, flush=True)
    return 0


def lines_of(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table: each phase with the medians of its milliseconds."""
    names = dict.fromkeys(name for run in runs for name in run["clock"])
    rows = [
        tuple(1000 * statistics.median(run[unit].get(name, 0.0) for run in runs) for unit in ("clock", "processor"))
        for name in names
    ]
    yield f"{'phase':<42}{'clock, ms':>12}{'processor, ms':>16}"
    for name, (clock, processor) in sorted(zip(names, rows, strict=True), key=lambda row: -row[1][1]):
        yield f"{name:<42}{clock:>12.1f}{processor:>16.1f}"
    totals = [[1000 * sum(run[unit].values()) for run in runs] for unit in ("clock", "processor")]
    yield f"{'median of all':<42}{statistics.median(totals[0]):>12.1f}{statistics.median(totals[1]):>16.1f}"
    yield f"{'least of all':<42}{min(totals[0]):>12.1f}{min(totals[1]):>16.1f}"
    yield f"{'modules imported':<42}{statistics.median(run['modules'] for run in runs):>12.0f}"


@dataclass(slots=True, kw_only=True)
class Phases:
    """Seconds by phase, each without what passed in phases within it.

    Attributes:
        clock, processor: seconds by the clock, and of the processor in this thread.
    """

    clock: Counter[str] = field(default_factory=Counter)
    processor: Counter[str] = field(default_factory=Counter)
    _under_way: list[str] = field(default_factory=list)
    _last: tuple[float, float] = (0.0, 0.0)

    def enter(self, name: str) -> None:
        self._account()
        self._under_way.append(name)

    def leave(self) -> None:
        self._account()
        self._under_way.pop()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def _account(self) -> None:
        now = time.perf_counter(), time.thread_time()
        if self._under_way:
            name = self._under_way[-1]
            self.clock[name] += now[0] - self._last[0]  # type: ignore[assignment]  # adds floats as well
            self.processor[name] += now[1] - self._last[1]  # type: ignore[assignment]
        self._last = now


def measure(model: str, *, device: str, mode: str | None) -> Mapping[str, Any]:
    """Goes from a model to its first result."""
    import threading

    import torch

    from compilefarm.benchmarks.cases import make_case

    case = make_case(model, device=device)
    x = torch.ones(8, 8, device=device)
    (x @ x).sum().item()
    phases, thread = Phases(), threading.current_thread()
    imported = len(sys.modules)
    with (
        _watching_imports(phases, is_watched=lambda: threading.current_thread() is thread),
        _watching_garbage(phases),
        phases.phase("torch.compile and Dynamo"),
    ):
        from compilefarm.client import Farm

        function = torch.compile(case.function, backend=Farm().backend, mode=mode, dynamic=case.dynamic)
        first = case.results(function, case.calls[0])
    _require_reused(case, first)
    return {"clock": phases.clock, "processor": phases.processor, "modules": len(sys.modules) - imported}


def _require_reused(case: Any, first: Sequence[Any]) -> None:
    from compilefarm.client import stats
    from compilefarm.client.config import DYNAMO

    records = stats()
    if os.environ[DYNAMO] == "reuse" and not (records and all(each.dynamo == "reused" for each in records)):
        raise SystemExit(f"it was not reused: {[(each.dynamo, each.outcome) for each in records]}")
    for ours, expected in zip(first, case.results(case.function, case.calls[0]), strict=True):
        if not ours.isfinite().all() or (ours - expected).abs().max() > 0.05 * expected.abs().max():
            raise SystemExit("the result is wrong")


@contextmanager
def _watching_imports(phases: Phases, *, is_watched: Callable[[], bool]) -> Iterator[None]:
    """Inside, each import is a phase, and functions of modules that are or were imported become what PHASES says."""
    original = imports._load_unlocked

    def watch(module: Any, name: str) -> None:
        for place, phase in PHASES.get(name, {}).items():
            _wrap(module, place, phase=phase, phases=phases)

    def load(spec: Any) -> Any:
        if not is_watched():
            return original(spec)
        with phases.phase(f"import {_library_of(spec.name)}"):
            module = original(spec)
        watch(module, spec.name)
        return module

    for name in PHASES:
        # One that a thread is importing is not watched.
        if (module := sys.modules.get(name)) is not None and not getattr(module.__spec__, "_initializing", False):
            watch(module, name)
    imports._load_unlocked = load
    try:
        yield
    finally:
        imports._load_unlocked = original


def _wrap(module: Any, place: str, *, phase: str, phases: Phases) -> None:
    *owners, name = place.split(".")
    owner = functools.reduce(getattr, owners, module)
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with phases.phase(phase):
            return function(*arguments, **keywords)

    setattr(owner, name, call)


@contextmanager
def _watching_garbage(phases: Phases) -> Iterator[None]:
    def tell(what: str, _: Mapping[str, int]) -> None:
        phases.enter("collecting garbage") if what == "start" else phases.leave()

    gc.callbacks.append(tell)
    try:
        yield
    finally:
        gc.callbacks.remove(tell)


def _library_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in _LARGE else parts[0] if len(parts[0]) < 30 else "of the artifact"


@contextmanager
def _farm(folder: Path, *, device: str) -> Iterator[Mapping[str, str]]:
    """A farm that keeps packages, and variables by which a process publishes there."""
    from compilefarm.benchmarks.farms import serving
    from compilefarm.client.config import ADDRESS, PACKAGE_SIGNING_KEY, TRUSTED_PACKAGE_KEYS
    from compilefarm.core.signatures import new_signing_key

    key = new_signing_key()
    (folder / "key.pem").write_bytes(key.pem())
    with serving(folder / "farm", device=device, options=("--cache-size-limit", "1GB")) as address:
        yield {
            ADDRESS: address,
            TRUSTED_PACKAGE_KEYS: key.public.text,
            PACKAGE_SIGNING_KEY: str(folder / "key.pem"),
        }


def _run(model: str, given: argparse.Namespace, *, variables: Mapping[str, str], folder: Path) -> Mapping[str, Any]:
    from compilefarm.client.config import DYNAMO

    written = folder / f"{model}.json"
    publishes = not written.exists()
    caches = Path(tempfile.mkdtemp(dir=folder))
    own = {"TMPDIR": str(caches), "TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
    role = {DYNAMO: "publish"} if publishes else {DYNAMO: "reuse", **_PATH_WITHOUT_COMPILER}
    warms = {"COMPILEFARM_WARM": "yes"} if given.warm else {}
    how = ["--device", given.device, *(["--mode", given.mode] if given.mode else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.reuse_phases", model, *how, "--process", str(written)],
        env={**os.environ, **variables, **own, **role, **warms},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{model}: a process has failed:\n{done.stderr[-3000:]}")
    found: Mapping[str, Any] = json.loads(written.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
