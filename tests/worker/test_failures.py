"""What errors within a child are called."""

from __future__ import annotations

import errno

import pytest
import torch

from compilefarm.core.errors import CorruptArtifact, InvalidRequest
from compilefarm.graph.decode import GraphRejected
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_COMPILE_ERROR,
    FAILURE_KIND_DEVICE_OUT_OF_MEMORY,
    FAILURE_KIND_OUT_OF_DISK,
    FAILURE_KIND_OUT_OF_MEMORY,
    FAILURE_KIND_OUTPUT_TOO_LARGE,
    FAILURE_KIND_UNEXPECTED_SOURCE,
    FAILURE_KIND_VERIFICATION,
)
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.failures import failure_of
from compilefarm.worker.source_check import UnexpectedSource


def within_inductor(cause: Exception) -> Exception:
    """An error as Inductor raises it again."""
    return torch._inductor.exc.InductorError(cause, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such lowering"), FAILURE_KIND_COMPILE_ERROR),
        (within_inductor(ValueError("no such lowering")), FAILURE_KIND_COMPILE_ERROR),
        (MemoryError(), FAILURE_KIND_OUT_OF_MEMORY),
        (within_inductor(MemoryError()), FAILURE_KIND_OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FAILURE_KIND_OUT_OF_MEMORY),
        (RuntimeError("cc1plus: out of memory allocating 65536 bytes after 1 bytes"), FAILURE_KIND_OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), FAILURE_KIND_DEVICE_OUT_OF_MEMORY),
        (within_inductor(torch.OutOfMemoryError("CUDA out of memory")), FAILURE_KIND_DEVICE_OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), FAILURE_KIND_DEVICE_OUT_OF_MEMORY),
        (OSError(errno.EFBIG, "File too large"), FAILURE_KIND_OUTPUT_TOO_LARGE),
        (OSError(errno.ENOSPC, "No space left on device"), FAILURE_KIND_OUT_OF_DISK),
        (within_inductor(OSError(errno.EDQUOT, "Disk quota exceeded")), FAILURE_KIND_OUT_OF_DISK),
        (RuntimeError("fatal error: error writing to /tmp/a.o: No space left on device"), FAILURE_KIND_OUT_OF_DISK),
        (VerificationFailed("output 0 differs"), FAILURE_KIND_VERIFICATION),
        (UnexpectedSource("it holds the name 'popen'"), FAILURE_KIND_UNEXPECTED_SOURCE),
        (CorruptArtifact("no program"), FAILURE_KIND_VERIFICATION),
    ],
)
def test_kinds_are_told_apart(error: Exception, kind: int) -> None:
    assert failure_of(error).failure.kind == kind


def test_a_request_that_is_wrong_is_no_failed_compile() -> None:
    assert failure_of(InvalidRequest("torch.load is not allowed")).invalid_request


def test_the_error_of_a_local_compile_is_named() -> None:
    failure = failure_of(GraphRejected("node 2: shapes do not match", error_type="builtins.RuntimeError")).failure
    assert (failure.error_type, failure.message) == ("builtins.RuntimeError", "node 2: shapes do not match")
