"""Launches Triton's kernels in loaded programs, as the worker chose and compiled them.

A finished wrapper asks for each kernel by digest, and gets what Inductor keeps of one (CachingAutotuner,
torch/_inductor/runtime/triton_heuristics.py) with its winner alone, and that one's machine code.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from compilefarm.torch_internals.autotuners import make_launchers

# A wrapper asks for its kernels while it is loaded. Their bytes are not needed afterwards.
_offered: ContextVar[Mapping[str, bytes]] = ContextVar("kernels", default=MappingProxyType({}))
# For the whole process, as Inductor's own: equal content is the same kernel, whichever artifact brought it. It is kept
# as long as a wrapper that launches it.
_loaded: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()


@contextmanager
def offering_kernels(kernels: Mapping[str, bytes]) -> Iterator[None]:
    """Inside, wrappers that are loaded find these kernels (content by digest)."""
    token = _offered.set(kernels)
    try:
        yield
    finally:
        _offered.reset(token)


def finished_kernel(digest: str, *, device: int = 0) -> Any:
    """The kernel that a wrapper asks for, on a GPU. Unpickles, so the bytes must be trusted by now.

    Raises:
        KeyError: it is not offered, and no wrapper has it.
    """
    kernel = _loaded.get((digest, device))
    if kernel is None:
        kernel = _loaded[digest, device] = _load(_offered.get()[digest], device=device)
    return kernel


def _load(content: bytes, *, device: int) -> Any:
    kernel = pickle.loads(content)  # noqa: S301 - part of an artifact
    kernel.restore_after_unpickle(None)
    (winner,) = kernel.compile_results
    kernel.device_props = kernel.device_props._replace(index=device)
    kernel.triton_meta["device"] = winner.compile_meta["device"] = device
    code = getattr(winner.kernel, "cubin_raw", None)
    if code is None:
        make_launchers(kernel)
        return kernel
    with tempfile.NamedTemporaryFile(prefix="compilefarm-", suffix=".cubin") as file:
        file.write(code)
        file.flush()
        winner.kernel.cubin_path = file.name
        make_launchers(kernel)
    return kernel
