"""Turns the gRPC status of a refused call into an error of `core/errors.py`. No gRPC type goes further."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from compilefarm.core.errors import (
    BY_REASON,
    ESTIMATED_WAIT_KEY,
    REASON_KEY,
    RETRY_AFTER_KEY,
    Busy,
    FarmError,
    InternalError,
    InvalidRequest,
    NoMatchingWorker,
    NotAFarm,
    NotAllowed,
    NotAuthenticated,
    NotStored,
    OutOfTime,
    Unreachable,
)
from compilefarm.core.printable import printable

_ErrorOf = Callable[[str], FarmError]

# For answers without a reason of ours: they come from gRPC itself, from a proxy, or from somebody else's server.
BY_STATUS: dict[str, type[FarmError]] = {
    "CANCELLED": Unreachable,
    "UNKNOWN": NotAFarm,
    "INVALID_ARGUMENT": InvalidRequest,
    "DEADLINE_EXCEEDED": OutOfTime,
    "NOT_FOUND": NotStored,
    "PERMISSION_DENIED": NotAllowed,
    # gRPC refuses messages above its size limit with this status.
    "RESOURCE_EXHAUSTED": InvalidRequest,
    "FAILED_PRECONDITION": NoMatchingWorker,
    "UNIMPLEMENTED": NotAFarm,
    "INTERNAL": InternalError,
    "UNAVAILABLE": Unreachable,
    "UNAUTHENTICATED": NotAuthenticated,
}
# gRPC core's words for bytes that are not HTTP/2 (an HTTP/1 server, a banner), the same in 1.62 and 1.85.
_NOT_HTTP2 = "Failed parsing HTTP/2"
# gRPC core's words for what goes wrong when a connection begins, in 1.62 and 1.85, and what to do about it.
_WHEN_CONNECTING = "failed to connect to all addresses"
_OTHER_NAMES = "its certificate is for other names than this address"
_REMEDIES = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS: unset COMPILEFARM_TLS_CA, or serve with --tls-certificate",
    "CERTIFICATE_VERIFY_FAILED": "COMPILEFARM_TLS_CA did not issue its certificate, or that has expired",
    "Hostname Verification Check failed": _OTHER_NAMES,
    "is not in peer certificate": _OTHER_NAMES,
    "Socket closed": "it hung up, as a farm with TLS does on whom has no COMPILEFARM_TLS_CA, or not the "
    "COMPILEFARM_TLS_CERTIFICATE that it asks for",
}
# Of a server whose queue is full and that does not say when to come back.
_RETRY_AFTER_SECONDS = 5.0
# Who answers in the place of a farm may say any number, and Python waits for none that is beyond its clock.
_LONGEST_RETRY_AFTER_SECONDS = 3600.0


def error_of(refusal: grpc.RpcError, *, address: str) -> FarmError:
    """Returns the error that the refusal of a call means.

    Args:
        refusal: as grpc raises it; it is a grpc.Call too.
        address: where the call went, for the message.
    """
    call: grpc.Call = refusal  # type: ignore[assignment]  # grpc raises objects that are both, its types do not say so
    told = {key: value for key, value in call.trailing_metadata() or () if isinstance(value, str)}
    details = printable(call.details() or "")
    known = BY_REASON.get(told.get(REASON_KEY, ""))
    if known is Busy:
        return Busy(
            details,
            retry_after_seconds=min(
                _seconds(told.get(RETRY_AFTER_KEY), otherwise=_RETRY_AFTER_SECONDS), _LONGEST_RETRY_AFTER_SECONDS
            ),
            estimated_wait_seconds=_seconds(told.get(ESTIMATED_WAIT_KEY), otherwise=0.0),
        )
    if known is not None:
        return known(details)
    return _foreign(call.code().name, details, address=address)


def _foreign(status: str, details: str, *, address: str) -> FarmError:
    error = NotAFarm if _NOT_HTTP2 in details else BY_STATUS.get(status, InternalError)
    if error is NotAFarm:
        return NotAFarm(f"something else than a compile farm answers at {address}: check the address ({details})")
    if error is Unreachable:
        return Unreachable(f"the farm at {address} cannot be reached: {_remedy(details)} ({details})")
    if error is OutOfTime:
        return OutOfTime(f"the farm at {address} did not answer in time: prewarm this graph, or raise timeout_seconds")
    return error(f"{address} refuses: {details or status}")


def _remedy(details: str) -> str:
    if _WHEN_CONNECTING in details:
        for words, remedy in _REMEDIES.items():
            if words in details:
                return remedy
    return "check that it runs"


def _seconds(text: str | None, *, otherwise: float) -> float:
    try:
        seconds = float(text or otherwise)
    except ValueError:
        return otherwise
    return seconds if 0 <= seconds < float("inf") else otherwise
