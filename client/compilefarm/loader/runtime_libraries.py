"""The versions of the symbols of the libraries that C++ kernels are linked with, on this machine."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def find_libstdcxx_version() -> str:
    """The latest version of symbols of the C++ library that this process runs on; empty if it is not found."""
    return _latest(rb"GLIBCXX_([0-9.]+)", path=_find("libstdc++.so.6"))


def find_libgomp_version() -> str:
    """The same of GCC's OpenMP library, which kernels load by its plain name; the one that torch brings has another."""
    return _latest(rb"GOMP_([0-9.]+)", path=_find("libgomp.so.1"))


def _find(name: str) -> Path | None:
    return next((path for path in _candidates(name) if path.is_file()), None)


def _candidates(name: str) -> Iterator[Path]:
    """What is mapped first, then what the loader would find where distributions put it."""
    # Of thousands of lines.
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if name in line]
    for line in lines:
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.name == name or path.name.startswith(f"{name}."):
            yield path
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    architecture = str(sysconfig.get_config_var("MULTIARCH") or "")
    for folder in (*folders, f"/lib/{architecture}", f"/usr/lib/{architecture}", "/lib64", "/usr/lib64", "/usr/lib"):
        yield Path(folder) / name


@functools.cache
def _latest(pattern: bytes, *, path: Path | None) -> str:
    found = re.findall(pattern, path.read_bytes()) if path is not None else []
    numbers = (tuple(int(part) for part in version.split(b".") if part) for version in found)
    return ".".join(map(str, max(numbers, default=())))
