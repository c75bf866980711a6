"""Tensors against memory that nobody may touch (`guarded_memory.cpp`), as torch's allocator of this process gives them:
inputs, results and what lies between.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path

import torch

from compilefarm.core.digests import digest_of

_SOURCE = Path(__file__).with_suffix(".cpp")
_TORCH = Path(torch.__file__).parent
_BUILT = Path(__file__).resolve().parents[2] / "build" / "fuzz"


@functools.cache
def _library() -> ctypes.CDLL:
    made_of = f"{torch.__version__}\n{_SOURCE.read_text()}".encode()
    path = _BUILT / f"guarded_memory-{digest_of(made_of)[:16]}.so"
    if not path.exists():
        _BUILT.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        paths = [f"-I{_TORCH / 'include'}", f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}"]
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", str(_SOURCE), *paths, "-lc10"]
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.replace(path)
    library = ctypes.CDLL(str(path))
    library.count_changed.restype = ctypes.c_uint64
    return library


def build() -> None:
    """Builds the allocator, which takes a second, unless it is there."""
    _library()


def guard(*, against_end: bool) -> None:
    """From now on new tensors of this process lie against a guard, and are given their room in that way for good.

    Args:
        against_end: the end of a tensor lies there, not its beginning.
    """
    _library().lie_against_end(against_end)
    _library().guard_memory()


def changed_patterns() -> int:
    """How many tensors were written beyond, on the side where there is no guard."""
    return int(_library().count_changed())


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor in memory that it fills: none lies before its first element or behind its last one."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    plain = tensor.detach().resolve_conj().resolve_neg()
    memory = torch.empty(reach, dtype=tensor.dtype)
    memory.copy_(plain.as_strided((reach,), (1,), plain.storage_offset()))
    return memory.as_strided(tuple(tensor.shape), tuple(tensor.stride())).requires_grad_(tensor.requires_grad)
