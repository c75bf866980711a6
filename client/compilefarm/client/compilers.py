"""Whether this machine can compile graphs, and load what it compiles: found out once, when the first graph is to be
compiled here."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

_SOURCE = "#include <Python.h>\nint answer(void) { return PY_MAJOR_VERSION; }\n"
_LONGEST_SECONDS = 30.0
# What Inductor's kernels for the CPU include (torch/_inductor/codegen/cpp_utils.py).
_HEADER = "include/torch/csrc/inductor/cpp_prefix.h"


def find_obstacle(device_types: Iterable[str]) -> str:
    """Why graphs on these devices cannot be compiled here, for people; empty if they can.

    Args:
        device_types: as torch calls them ("cpu", "cuda").
    """
    return next(filter(None, map(_obstacle, sorted(set(device_types)))), "")


@cache
def _obstacle(device_type: str) -> str:
    if device_type == "cuda":
        return _try_all(_c_compilers(), language="c", purpose="which Triton's driver needs")
    missing = "" if _has_header() else f"torch comes without its headers ({_HEADER})"
    return missing or _try_all(_cpp_compilers(), language="c++", purpose="which Inductor needs")


def _has_header() -> bool:
    import torch

    return (Path(torch.__file__).parent / _HEADER).exists()


def _cpp_compilers() -> Sequence[str]:
    named = _of_inductor()
    return [named] if isinstance(named, str) else [name for name in named if name]


def _of_inductor() -> str | Sequence[str | None]:
    try:
        from compilefarm.torch_internals.cpp_builds import compilers_tried

        return compilers_tried()
    except (ImportError, AttributeError):
        return os.environ.get("CXX", "g++")


def _c_compilers() -> Sequence[str]:
    # triton/runtime/build.py looks in the same places.
    named = os.environ.get("CC")
    return [named] if named else [name for name in ("gcc", "clang") if shutil.which(name)]


def _try_all(compilers: Sequence[str], *, language: str, purpose: str) -> str:
    problems = [_try(compiler, language=language) for compiler in compilers]
    if "" in problems:
        return ""
    tried = "; ".join(problems) or "none is installed"
    return f"there is no working {language.upper()} compiler with the headers of Python, {purpose}: {tried}"


def _try(compiler: str, *, language: str) -> str:
    try:
        with tempfile.TemporaryDirectory(prefix="compilefarm-", dir=_folder()) as folder:
            return _try_in(Path(folder), compiler, language=language)
    except OSError as error:
        return f"temporary files cannot be written: {error}"


def _folder() -> str:
    """Where the libraries will lie that Inductor and Triton build (torch/_inductor/runtime/cache_dir_utils.py)."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    os.makedirs(folder, exist_ok=True)
    return folder


def _try_in(folder: Path, compiler: str, *, language: str) -> str:
    library = folder / "probe.so"
    headers = f"-I{sysconfig.get_path('include')}"
    command = [*shlex.split(compiler), "-x", language, headers, "-", "-shared", "-fPIC", "-o", str(library)]
    try:
        done = subprocess.run(
            command, input=_SOURCE, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler}: {error}"
    if done.returncode != 0:
        return f"{compiler}: {(done.stderr.strip() or f'it ends with {done.returncode}').splitlines()[0]}"
    return _try_to_load(library, compiler=compiler)


def _try_to_load(library: Path, *, compiler: str) -> str:
    """A folder may be mounted noexec, and a compiler may be one for other machines."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"{compiler}: what it makes cannot be loaded: {error}"
    return ""
