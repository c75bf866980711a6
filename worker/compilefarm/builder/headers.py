"""Shares the headers that Inductor precompiles for C++ kernels between processes.

It does so in every folder for temporary files anew (torch/_inductor/codecache.py: _precompile_header), in front of the
first kernel: 10 of 16 seconds of a small compile on two cores. Their names tell compiler, flags and text; one that fits
no longer is not looked for.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch


def precompile_headers() -> list[str]:
    """Builds a kernel, and returns the headers that Inductor precompiled for it, as paths in the temporary folder."""
    torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(8))
    beginning = Path(tempfile.gettempdir())
    return sorted(str(path.relative_to(beginning)) for path in _folder().iterdir() if path.is_file())


def include_folders() -> list[str]:
    """Where Python and torch have their headers, as in every command of the C++ compiler (cpp_builder.py)."""
    return [sysconfig.get_path("include"), str(Path(torch.__file__).parent / "include")]


def use_own_folder() -> None:
    """Has Inductor keep headers in this process's folder for temporary files: it decides where when it is imported,
    which may have been before a fork.
    """
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    headers = os.path.join(folder, "precompiled_headers")
    places = {"_HEADER_DIR": headers, "_HEADER_LOCK_DIR": os.path.join(headers, "locks")}
    vars(importlib.import_module("torch._inductor.codecache")).update(places)


def offer_headers(folder: Path, names: Iterable[str]) -> None:
    """Has Inductor use headers of a folder, which it only reads."""
    mine = _folder()
    mine.mkdir(parents=True, exist_ok=True)
    for name in names:
        (mine / name).symlink_to(folder / name)


def _folder() -> Path:
    return Path(importlib.import_module("torch._inductor.codecache")._HEADER_DIR)
