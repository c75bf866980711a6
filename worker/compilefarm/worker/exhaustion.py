"""Tells whether an error means that memory or disk was exhausted."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import torch

from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_DEVICE_OUT_OF_MEMORY,
    FAILURE_KIND_OUT_OF_DISK,
    FAILURE_KIND_OUT_OF_MEMORY,
    FAILURE_KIND_OUTPUT_TOO_LARGE,
    FailureKind,
)

# Where no torch.OutOfMemoryError is raised: c10/cuda/CUDAException.h, and the driver's calls of torch and Triton.
_WORDS_OF_DEVICE = ("CUDA error: out of memory", "CUDA driver error: out of memory", "[CUDA]: out of memory")
# torch raises plain RuntimeErrors on the host (c10/core/impl/alloc_cpu.cpp); GCC says the others.
_WORDS_OF_HOST = ("can't allocate memory", "out of memory allocating", "virtual memory exhausted", "std::bad_alloc")
# strsignal(SIGXFSZ) and strerror(EFBIG), as a compiler that hits the limit is quoted.
_WORDS_OF_FILES = ("File size limit exceeded", "File too large")
_WORDS_OF_DISK = ("No space left on device", "Disk quota exceeded")


def find_exhausted(error: Exception) -> FailureKind.ValueType | None:
    """Returns what was exhausted: memory, disk, or the size limit of a file; None for errors of other kinds."""
    for cause in _causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, torch.OutOfMemoryError) or _says(cause, _WORDS_OF_DEVICE):
            return FAILURE_KIND_DEVICE_OUT_OF_MEMORY
        if isinstance(cause, MemoryError) or number == errno.ENOMEM or _says(cause, _WORDS_OF_HOST):
            return FAILURE_KIND_OUT_OF_MEMORY
        if number == errno.EFBIG or _says(cause, _WORDS_OF_FILES):
            return FAILURE_KIND_OUTPUT_TOO_LARGE
        if number in (errno.ENOSPC, errno.EDQUOT) or _says(cause, _WORDS_OF_DISK):
            return FAILURE_KIND_OUT_OF_DISK
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes. Inductor raises one of its own "from None" and keeps the first
    (torch/_inductor/exc.py: InductorError.inner_exception).
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while isinstance(found, BaseException) and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = getattr(found, "inner_exception", None) or found.__cause__


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    text = str(error)
    return any(each in text for each in words)
