"""Checks whether compiles can run on this machine."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.worker.sandbox import SandboxUnavailable, first_line, open_sandbox

NVIDIA = Path("/dev/nvidiactl")
_SOURCE = """
#include <Python.h>
#include <vector>
extern "C" int sum() { std::vector<int> v{1, 2}; return v[0] + v[1]; }
"""
_LIMIT_SECONDS = 60


def check_machine() -> list[Check]:
    """Checks what a worker on this machine would need."""
    return list(_checks())


def _checks() -> Iterator[Check]:
    yield _check_cpp()
    yield from _check_triton() if NVIDIA.exists() else [ok("Triton", "not needed: no NVIDIA GPU here")]
    yield _check_sandbox()


def _check_cpp() -> Check:
    name = os.environ.get("CXX", "g++")
    compiler = shutil.which(name)
    if compiler is None:
        return failed("C++ compiler", f"there is no {name}", remedy="install one (apt-get install g++), or set CXX")
    version = _run([compiler, "--version"]).stdout.partition("\n")[0]
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        return failed(
            "C++ compiler",
            f"{version}, but there is no {include}/Python.h, which the code that torch generates includes",
            remedy="install the headers of this Python (apt-get install python3-dev)",
        )
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "trial.cpp"), Path(folder, "trial.so")
        source.write_text(_SOURCE)
        built = _run([compiler, "-shared", "-fPIC", "-std=c++17", f"-I{include}", str(source), "-o", str(library)])
    if built.returncode != 0:
        return failed(
            "C++ compiler",
            f"{version} cannot build a library: {first_line(built.stderr)}",
            remedy="install the standard library and headers that belong to it, or set CXX to another compiler",
        )
    return ok("C++ compiler", f"{version} ({compiler})")


def _check_triton() -> Iterator[Check]:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        yield failed("Triton", "it is not installed, and there is a GPU", remedy="install torch with CUDA")
        return
    ptxas = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang")
    if compiler is None:
        yield failed(
            "Triton",
            "there is no C compiler, which it builds its launchers with",
            remedy="install one (apt-get install gcc), or set CC",
        )
    elif ctypes.util.find_library("cuda") is None:
        yield failed(
            "Triton",
            "libcuda is not found, which its driver is linked with",
            remedy="give the container the GPU's driver (nvidia-container-toolkit), and run ldconfig",
        )
    elif not ptxas.exists() and shutil.which("ptxas") is None:
        yield failed("Triton", f"there is no {ptxas}", remedy="install Triton anew, or a CUDA toolkit")
    else:
        yield ok("Triton", f"C compiler {compiler}, libcuda and ptxas are there")


def _check_sandbox() -> Check:
    try:
        sandbox = open_sandbox(interpreter=sys.executable, gpu=NVIDIA.exists())
    except SandboxUnavailable as error:
        return warning("sandbox", f"{error}: compiles cannot be shut off from files and network", remedy=error.remedy)
    return ok("sandbox", f"{sandbox.version} ({sandbox.program})")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
