#!/usr/bin/env python3
"""Sets up this checkout and runs it: `python3 dev.py demo`, `python3 dev.py check`. Needs nothing but Python.

Each supported end of the torch range has an environment of its own (.venv-oldest, .venv-newest), made from the locked
files in requirements/ and made anew when they change.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent
ENDS = ("oldest", "newest")
UV = "uv>=0.8"
# Code from this generator imports with protobuf 4.25 to 7 and asks for no recent grpcio in a pod.
GENERATOR = ("grpcio-tools==1.62.3", "mypy-protobuf==3.6.0", "setuptools<81")
# It has no wheels for every Python and machine, hence not among the locked packages.
FUZZER = "atheris==3.0.0"
SERVICE_PROTOS = "*_service.proto"
REFERENCE = ROOT / "docs" / "reference.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("demo", run_demo, "set up and run the demo; further arguments go to `compilefarm demo`")
    command("check", run_check, "set up and run every check: what CI runs")
    command("static", run_static, "set up and run the checks that execute nothing of ours")
    test = command(
        "test", run_test, "set up and run the tests with one end of the range; further arguments go to pytest"
    )
    test.add_argument("--torch", choices=ENDS, default="newest", dest="end")
    fuzz = command("fuzz", run_fuzz, "set up and fuzz for ten minutes; further arguments go to the fuzzer")
    fuzz.add_argument("subject", choices=("requests", "files", "injection"))
    setup = command("setup", run_setup, "make the environments and print how to enter them")
    setup.add_argument("--torch", choices=ENDS, action="append", dest="ends")
    command("generate", run_generate, "generate the protobuf code and docs/reference.md anew")
    command("lock", run_lock, "resolve the dependencies anew")
    arguments, further = parser.parse_known_args()
    if further and arguments.command not in ("demo", "test", "fuzz"):
        parser.error(f"unknown: {' '.join(further)}")
    arguments.further = further
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def run_demo(arguments: argparse.Namespace) -> int:
    return call([set_up("newest") / "compilefarm", "demo", *arguments.further])


def run_check(_: argparse.Namespace) -> int:
    started = time.monotonic()
    failed = report("static checks", static(), started)
    for end in ENDS:
        set_up(end)
    # Side by side: most of its time a test waits for other processes.
    oldest, newest = ENDS
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        other = start_pytest(newest, ["--durations=25"], output)
        failed |= report(f"tests with the {oldest} torch", start_pytest(oldest, ["--durations=25"]).wait(), started)
        code = other.wait()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    failed |= report(f"tests with the {newest} torch", code, started)
    return 1 if failed else 0


def report(step: str, code: int, started: float) -> bool:
    """Prints what came of a step; returns whether it failed."""
    print(f"== {step}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
    return code != 0


def run_static(_: argparse.Namespace) -> int:
    return static()


def run_test(arguments: argparse.Namespace) -> int:
    return pytest(arguments.end, arguments.further)


def run_fuzz(arguments: argparse.Namespace) -> int:
    if arguments.subject == "injection":
        # Sources differ between releases of torch.
        fuzzer = ["-m", "tests.fuzz.injection", *arguments.further]
        return max(call([set_up(end) / "python", *fuzzer]) for end in ENDS)
    tools = set_up("newest")
    require(call([tools / "uv", "pip", "install", "--quiet", "--python", tools / "python", FUZZER]))
    return call([tools / "python", "tests/fuzz/run.py", arguments.subject, *arguments.further])


def run_setup(arguments: argparse.Namespace) -> int:
    for end in arguments.ends or ENDS:
        print(f". {set_up(end) / 'activate'}")
    return 0


def run_generate(_: argparse.Namespace) -> int:
    generate(ROOT / "proto")
    return call([set_up("newest") / "python", REFERENCE])


def run_lock(_: argparse.Namespace) -> int:
    for end in ENDS:
        lock(end)
    return 0


def pytest(end: str, arguments: Sequence[str]) -> int:
    set_up(end)
    return start_pytest(end, arguments).wait()


def start_pytest(end: str, arguments: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    # Tests of farms with workers of two releases of torch need both. One end does them; it does not wait for the other
    # to be set up.
    python = ROOT / ".venv-oldest" / "bin" / "python"
    has_other = end == "newest" and python.exists()
    surroundings = {**os.environ, "OTHER_TORCH_PYTHON": str(python) if has_other else ""}
    command = [str(environment(end) / "python"), "-m", "pytest", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=output, stderr=output and subprocess.STDOUT)


def static() -> int:
    tools = set_up("newest")
    codes = [
        call([tools / "ruff", "check", "."]),
        call([tools / "ruff", "format", "--check", "."]),
        call([tools / "mypy"]),
        call([tools / "lint-imports"]),
        call([tools / "buf", "lint", "proto"]),
        call([tools / "python", "-m", "compileall", "-q", "proto", "service", "worker", "client"]),
        check_wire_is_compatible(tools),
        check_generated_code(),
        call([tools / "python", REFERENCE, "--check"]),
    ]
    return max(codes)


def check_wire_is_compatible(tools: Path) -> int:
    """Compares the wire with the last released one: what v1 said once, it says for ever."""
    released = ROOT / "proto" / "released.binpb"
    return call([tools / "buf", "breaking", "proto", "--against", released])


def check_generated_code() -> int:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "proto"
        shutil.copytree(ROOT / "proto", fresh, ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
        generate(fresh)
        committed = {path.name: path.read_bytes() for path in generated_files(ROOT / "proto")}
        expected = {path.name: path.read_bytes() for path in generated_files(fresh)}
    stale = sorted(name for name in committed.keys() | expected.keys() if committed.get(name) != expected.get(name))
    if stale:
        print(f"generated code is not current: {', '.join(stale)}; run: python3 dev.py generate")
    return 1 if stale else 0


def generated_files(proto: Path) -> list[Path]:
    return sorted((proto / "compilefarm" / "v1").glob("*_pb2*.py*"))


def generate(proto: Path) -> None:
    tools = environment("generator")
    uv_install(tools, "generator", [*GENERATOR])
    sources = sorted((proto / "compilefarm" / "v1").glob("*.proto"))
    services = sorted((proto / "compilefarm" / "v1").glob(SERVICE_PROTOS))
    protoc = [tools / "python", "-m", "grpc_tools.protoc", f"-I{proto}"]
    # What cannot be parsed leaves the code as it was.
    require(call([*protoc, f"--descriptor_set_out={os.devnull}", *sources]))
    for path in generated_files(proto):
        path.unlink()
    # The plugins are found on PATH.
    surroundings = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
    require(call([*protoc, f"--python_out={proto}", f"--mypy_out=quiet:{proto}", *sources], surroundings))
    require(call([*protoc, f"--grpc_python_out={proto}", f"--mypy_grpc_out=quiet:{proto}", *services], surroundings))


def lock(end: str) -> None:
    tools = environment("lock")
    uv_install(tools, "lock", [])
    # The oldest end holds every direct dependency at its floor, torch among them.
    resolution = "lowest-direct" if end == "oldest" else "highest"
    command = [
        tools / "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-emit-index-url",
        "--no-emit-find-links", "--no-header", "--upgrade", "--python-version", "3.11",
        "--extra", "all", "--group", "dev", "--resolution", resolution,
        "--output-file", ROOT / "requirements" / f"{end}.txt", ROOT / "pyproject.toml",
    ]  # fmt: skip
    require(call(command))


def set_up(end: str) -> Path:
    """Makes the environment of one end of the torch range and returns its folder of programs."""
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise SystemExit("Python.h is missing, which Inductor's C++ needs; on Debian: apt-get install python3-dev")
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise SystemExit("no C++ compiler, which a worker needs; on Debian: apt-get install g++")
    tools = environment(end)
    uv_install(tools, end, ["-r", str(ROOT / "requirements" / f"{end}.txt")])
    return tools


def environment(name: str) -> Path:
    folder = ROOT / f".venv-{name}"
    programs = folder / "bin"
    if not (programs / "uv").exists():
        shutil.rmtree(folder, ignore_errors=True)
        print(f"== making {folder.name}", flush=True)
        if call([sys.executable, "-m", "venv", folder]) != 0:
            raise SystemExit("python3 -m venv failed; on Debian: apt-get install python3-venv")
        require(call([programs / "python", "-m", "pip", "install", "--quiet", UV]))
    return programs


def uv_install(programs: Path, name: str, packages: Sequence[str]) -> None:
    """Installs packages, and the checkout itself where a lock file names them, unless that was done before."""
    content = "\n".join(packages) + (ROOT / "pyproject.toml").read_text()
    locked = ROOT / "requirements" / f"{name}.txt"
    if locked.exists():
        content += locked.read_text()
    stamp = programs.parent / "installed.sha256"
    digest = hashlib.sha256(content.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    install = [programs / "uv", "pip", "install", "--quiet", "--python", programs / "python"]
    if packages:
        print(f"== installing into .venv-{name}", flush=True)
        require(call([*install, *packages]))
    if locked.exists():
        require(call([*install, "--no-deps", "--editable", ROOT]))
    stamp.write_text(digest)


def call(command: Sequence[object], surroundings: dict[str, str] | None = None) -> int:
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=surroundings, check=False).returncode


def require(code: int) -> None:
    if code != 0:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
