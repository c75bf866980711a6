"""Turns errors within a child into failures on the wire."""

from __future__ import annotations

from compilefarm.core.errors import FarmError, InvalidRequest
from compilefarm.graph.decode import GraphRejected
from compilefarm.graph.symbols import Inexpressible
from compilefarm.torch_internals.compiling import not_serializable_error
from compilefarm.v1.child_pb2 import ChildFailure
from compilefarm.v1.job_pb2 import (
    FAILURE_KIND_COMPILE_ERROR,
    FAILURE_KIND_NOT_SERIALIZABLE,
    FAILURE_KIND_TIMEOUT,
    FAILURE_KIND_UNEXPECTED_SOURCE,
    FAILURE_KIND_VERIFICATION,
    CompileFailure,
    FailureKind,
)
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.exhaustion import find_exhausted
from compilefarm.worker.limits import TimeLimitExceeded
from compilefarm.worker.source_check import UnexpectedSource

_LONGEST_MESSAGE = 4000


def failure_of(error: Exception) -> ChildFailure:
    """Returns the failure that an error of a task becomes."""
    return ChildFailure(
        invalid_request=isinstance(error, InvalidRequest),
        failure=CompileFailure(
            kind=_kind(error),
            message=str(error)[:_LONGEST_MESSAGE],
            error_type=_type_name(error),
            refusal=error.refusal if isinstance(error, VerificationFailed) else None,
        ),
    )


def _kind(error: Exception) -> FailureKind.ValueType:
    if isinstance(error, UnexpectedSource):
        return FAILURE_KIND_UNEXPECTED_SOURCE
    if isinstance(error, TimeLimitExceeded):
        return FAILURE_KIND_TIMEOUT
    exhausted = find_exhausted(error)
    if exhausted is not None:
        return exhausted
    if isinstance(error, not_serializable_error() | Inexpressible):
        return FAILURE_KIND_NOT_SERIALIZABLE
    if isinstance(error, VerificationFailed | FarmError):
        return FAILURE_KIND_VERIFICATION
    return FAILURE_KIND_COMPILE_ERROR


def _type_name(error: Exception) -> str:
    kind = error.error_type if isinstance(error, GraphRejected) else type(error)
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
