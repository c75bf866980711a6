#!/usr/bin/env python3
"""Sets up this checkout and runs it: `python3 dev.py demo`, `python3 dev.py check`. Needs nothing but Python.

Each supported end of the torch range has an environment of its own (.venv-oldest, .venv-newest), made from the locked
files in requirements/. `setup` prints how to enter them: there everything else is a command that CONTRIBUTING.md names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent
ENDS = ("oldest", "newest")
UV = "uv>=0.8"
# How the versions of each end are chosen.
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
# The newest end with the libraries of more programs, which is not needed for tests.
WILD = "wild"
# Tests about what runs without torch, so that its release decides nothing there (tests/docs/test_ends.py).
WITHOUT_TORCH = ("children", "cli", "client/calls", "core", "docs", "hostile", "service", "store")
# What processes of their own do, one after the other, beside those of both ends, so that no core is idle while a test
# waits: by what they are called, the end and the places. The first has the latest Ray, the second the floors of grpcio
# and the others.
APART = {
    "tests of the pool on Ray": ("newest", ("cluster",)),
    "tests without torch": ("oldest", WITHOUT_TORCH),
    # Torch writes the requests, and what is tried is the gateway and the sandbox around it.
    "tests of farms of their own": ("oldest", ("chaos", "farm/test_contained.py", "farm/test_toolchain.py")),
    # What `demo` runs.
    "tests of the demo": ("newest", ("bench/test_demo.py",)),
}
SIDE_BY_SIDE = 3
# Of the others, those that one end does, so that both ends take as long.
AT_ONE_END = {
    "oldest": (
        # Torch writes the requests, and what is tried is the gateway, the service and the sandbox around it, or tools.
        *("bench/test_bench.py", "farm/test_serve.py", "farm/test_takeover.py"),
        *("torch_internals/test_private_names.py", "worker/test_child.py"),
        # What packages are as data; what is in them, tests/reuse tries at both ends.
        "packages",
        # Quantized weights and saved functions with a real farm: with codec and loader they are tried at both ends.
        *("farm/test_saved_functions.py", "farm/test_subclasses.py"),
        # Pods in two states at one farm: how keys tell states apart, the other tests of the folder try at both ends.
        "wrong_hits/test_farm.py",
        # Models of libraries, whose parts tests of both ends try one by one.
        "wild",
    ),
    "newest": (
        # What a farm's artifacts consist of, and hand out: tests/loader and tests/builder try both ends.
        *("farm/test_artifacts.py", "farm/test_exports.py"),
        # Models of libraries, and ranks. Workers and pods of the oldest torch take part in test_prewarm.py.
        "farm/test_generate.py",
        *("corpus/test_models.py", "farm/test_collectives.py", "farm/test_prewarm.py"),
        # What pods find out when they start: how releases of torch differ, tests/reuse and the canaries try at both.
        "client/test_starts.py",
        # How a pod goes on without a compiler, and without names that a later torch may no longer have.
        "client/test_uncompiled_pods.py",
        # What damages requests and watches how operators read memory, tried in short; long runs choose their torch.
        *("fuzz/test_damaged_requests.py", "fuzz/test_guarded.py", "fuzz/test_options.py", "fuzz/test_packages.py"),
        *("fuzz/test_sources.py", "fuzz/test_watch.py"),
    ),
}
# A test that hangs in native code with Python's lock is not interrupted by its timeout of 600 s. This says where each
# thread is, and ends the tests.
NEVER_FOR_EVER = ("-o", "faulthandler_timeout=900", "-o", "faulthandler_exit_on_timeout=true")
# Threads of OpenMP that wait for work do it asleep. Otherwise they spin, each on a core that the tests of the other end
# want: a fifth of the processor time of tests that call torch.
WAITING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
# What Python frees, glibc keeps for what comes next. Otherwise the heap shrinks and grows with each graph, whose pages
# the kernel clears anew: a quarter of the processor time of tests that trace.
KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}


@dataclass(frozen=True)
class Run:
    """What one process of pytest does: the tests of some places, or all that no other one does."""

    name: str
    end: str
    places: Sequence[str] = ()

    def arguments(self) -> list[str]:
        at_other_end = (place for end, places in AT_ONE_END.items() if end != self.end for place in places)
        apart = (place for _, places in APART.values() for place in places)
        elsewhere = [f"--ignore=tests/{place}" for place in (*apart, *at_other_end)]
        chosen = [f"tests/{place}" for place in self.places] or elsewhere
        return ["--durations=25", *NEVER_FOR_EVER, *chosen]


# The longest first: those of both ends take the whole time.
RUNS = (
    *(Run(f"tests with the {end} torch", end) for end in ENDS),
    *(Run(name, end, places) for name, (end, places) in APART.items()),
)
# What needs no test; run with the newest end.
STATIC = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "lint-imports",
    "buf lint proto",
    # With the last released one: what v1 said once, it says for ever.
    "buf breaking proto --against proto/released.binpb",
    "python -m compileall -q proto service worker client tests/benchmarks",
    "python proto/generate.py --check",
    "python docs/reference.py --check",
    "python docs/site.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="set up and run the demo; further arguments go to `compilefarm demo`")
    commands.add_parser("check", help="set up and run every check: what CI runs")
    commands.add_parser("static", help="set up and run the checks that are no tests")
    test = commands.add_parser("test", help="set up and run tests; further arguments go to pytest")
    test.add_argument("--torch", choices=ENDS, default="newest", dest="end")
    commands.add_parser("setup", help="make the environments and print how to enter them")
    commands.add_parser("wild", help="set up more libraries and run tests.wild; further arguments go to that")
    locking = commands.add_parser("lock", help="write requirements/ and run tests.wild; further arguments go to that")
    locking.add_argument("--upgrade", action="store_true", help="resolve all versions anew, not what is new alone")
    arguments, further = parser.parse_known_args()
    if further and arguments.command not in ("demo", "test", "wild", "lock"):
        parser.error(f"unknown: {' '.join(further)}")
    match arguments.command:
        case "demo":
            return call(set_up("newest"), ["compilefarm", "demo", *further])
        case "check":
            return check()
        case "static":
            return static()
        case "test":
            set_up(arguments.end)
            return start_pytest(arguments.end, further).wait()
        case "wild":
            return call(set_up(WILD), ["python", "-m", "tests.wild", *further])
        case "lock":
            return lock(further, upgrade=arguments.upgrade)
        case _:
            for end in ENDS:
                print(f". {set_up(end) / 'activate'}")
            return 0


def check() -> int:
    started = time.monotonic()
    failed = report("static checks", static(), time.monotonic() - started)
    for end in ENDS:
        set_up(end)
    started = time.monotonic()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as side_by_side:
        # The first one is seen while it runs.
        results = [side_by_side.submit(run_tests, run, seen=run is RUNS[0]) for run in RUNS]
        try:
            for run, result in zip(RUNS, results, strict=True):
                code, seconds, output = result.result()
                sys.stdout.buffer.write(output)
                failed |= report(run.name, code, seconds)
        finally:
            # Whoever interrupts this wants no more of them.
            side_by_side.shutdown(wait=False, cancel_futures=True)
    print(f"== all tests: {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def run_tests(run: Run, *, seen: bool) -> tuple[int, float, bytes]:
    """Returns how one process of pytest ended, after how many seconds, and what it printed if that was not seen."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        code = start_pytest(run.end, run.arguments(), None if seen else output).wait()
        output.seek(0)
        return code, time.monotonic() - started, output.read()


def report(step: str, code: int, seconds: float) -> bool:
    """Prints what came of a step; returns whether it failed."""
    print(f"== {step}: {'passed' if code == 0 else 'FAILED'} in {seconds:.0f} s", flush=True)
    return code != 0


def static() -> int:
    programs = set_up("newest")
    return max(call(programs, command.split()) for command in STATIC)


def lock(further: Sequence[str], *, upgrade: bool) -> int:
    """Writes the versions of both ends and of further libraries, and runs programs of all with the newest ones."""
    programs = set_up("newest")
    resolve = ["uv", "pip", "compile", "--quiet", "--python-version", "3.11", *(["--upgrade"] if upgrade else [])]
    for end, resolution in RESOLUTIONS.items():
        given = ["pyproject.toml", "--extra", "all", "--group", "dev", "--resolution", resolution]
        require(call(programs, [*resolve, *given, "--output-file", f"requirements/{end}.txt"]))
    # Some of these libraries ask for an older torch, and run with the newest one.
    given = ["requirements/newest.txt", "--overrides", "requirements/newest.txt", "--group", WILD]
    require(call(programs, [*resolve, *given, "--output-file", f"requirements/{WILD}.txt"]))
    return call(set_up(WILD), ["python", "-m", "tests.wild", *further])


def start_pytest(end: str, arguments: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    # Tests of farms with workers of two releases of torch need both. One end does them; it does not wait for the other
    # to be set up.
    python = ROOT / ".venv-oldest" / "bin" / "python"
    has_other = end == "newest" and python.exists()
    variables = {**WAITING_THREADS, **KEPT_MEMORY, **os.environ, "OTHER_TORCH_PYTHON": str(python) if has_other else ""}
    if shutil.which("ld.gold"):
        # With programs/g++, which says why.
        variables["PATH"] = f"{ROOT / 'tests' / 'programs'}{os.pathsep}{variables.get('PATH', '')}"
    command = [str(folder_of(end) / "bin" / "python"), "-m", "pytest", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output and subprocess.STDOUT)


def set_up(end: str) -> Path:
    """Makes the environment of one end of the torch range, or that of more libraries, current and returns its folder of
    programs.
    """
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise SystemExit("Python.h is missing, which Inductor's C++ needs; on Debian: apt-get install python3-dev")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise SystemExit("no C++ compiler, which a worker needs; on Debian: apt-get install g++")
    programs = folder_of(end) / "bin"
    if not (programs / "uv").exists():
        make_environment(programs.parent)
    # Each file names all that is needed; some libraries of the table of programs ask for an older torch.
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", str(programs / "python")]
    if sys.dont_write_bytecode:
        # Where no process leaves it for the next one, each of hundreds would compile all libraries anew.
        install.append("--compile-bytecode")
    # uv does nothing where both are installed as they stand there.
    require(call(programs, [*install, "--requirement", f"requirements/{end}.txt"]))
    require(call(programs, [*install, "--editable", "."]))
    return programs


def folder_of(end: str) -> Path:
    return ROOT / f".venv-{end}"


def make_environment(folder: Path) -> None:
    print(f"== making {folder.name}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if subprocess.call([sys.executable, "-m", "venv", folder]) != 0:
        raise SystemExit("python3 -m venv failed; on Debian: apt-get install python3-venv")
    require(call(folder / "bin", ["python", "-m", "pip", "install", "--quiet", UV]))


def call(programs: Path, command: Sequence[str]) -> int:
    """Runs a command as if the environment with those programs had been entered."""
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.call([programs / command[0], *command[1:]], cwd=ROOT, env={**os.environ, "PATH": path})


def require(code: int) -> None:
    if code != 0:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
