"""Shares the headers that Inductor precompiles for C++ kernels between processes.

It does so in every folder for temporary files anew (torch/_inductor/codecache.py: _precompile_header), in front of the
first kernel: 10 of 16 seconds of a small compile on two cores. Their names tell compiler, flags and text; one that fits
no longer is not looked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from compilefarm.torch_internals.cpp_builds import headers_folder


def precompile_headers() -> list[str]:
    """Builds a kernel, and returns the headers that Inductor precompiled for it, as paths in the temporary folder."""
    torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(8))
    beginning = Path(tempfile.gettempdir())
    return sorted(str(path.relative_to(beginning)) for path in headers_folder().iterdir() if path.is_file())


def offer_headers(folder: Path, names: Iterable[str]) -> None:
    """Has Inductor use headers of a folder, which it only reads."""
    mine = headers_folder()
    mine.mkdir(parents=True, exist_ok=True)
    for name in names:
        (mine / name).symlink_to(folder / name)
