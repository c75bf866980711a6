"""What a gRPC status becomes: every row of the table."""

from __future__ import annotations

import grpc
import pytest

from compilefarm.client.refusals import error_of
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


class Refusal(grpc.RpcError):
    def __init__(self, status: str, *, details: str | None = "what happened", **told: str | bytes) -> None:
        self._status = grpc.StatusCode[status]
        self._details = details
        self._told = [(key.replace("_", "-"), value) for key, value in told.items()]

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> list[tuple[str, str | bytes]] | None:
        return self._told or None


@pytest.mark.parametrize("error", sorted(BY_REASON.values(), key=lambda error: error.reason))
def test_every_error_of_the_farm_arrives_as_itself(error: type[FarmError]) -> None:
    found = error_of(Refusal(error.status, **{REASON_KEY: error.reason}), address="farm:1")
    assert type(found) is error
    assert str(found) == "what happened"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7.5", 7.5), ("0", 0.0), (None, 5.0), ("soon", 5.0), ("inf", 5.0), ("1e300", 3600.0)],
)
def test_a_full_queue_says_when_to_come_back(text: str | None, seconds: float) -> None:
    told = {REASON_KEY: "busy"} | ({RETRY_AFTER_KEY: text} if text is not None else {})
    found = error_of(Refusal("RESOURCE_EXHAUSTED", **told), address="farm:1")
    assert isinstance(found, Busy)
    assert found.retry_after_seconds == seconds
    assert found.estimated_wait_seconds == 0.0


@pytest.mark.parametrize(("text", "seconds"), [("7.5", 7.5), ("soon", 0.0), ("-1", 0.0), ("nan", 0.0)])
def test_a_full_queue_says_how_long_it_is(text: str, seconds: float) -> None:
    told = {REASON_KEY: "busy", ESTIMATED_WAIT_KEY: text}
    found = error_of(Refusal("RESOURCE_EXHAUSTED", **told), address="farm:1")
    assert isinstance(found, Busy)
    assert found.estimated_wait_seconds == seconds


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("CANCELLED", Unreachable),
        ("UNKNOWN", NotAFarm),
        ("INVALID_ARGUMENT", InvalidRequest),
        ("DEADLINE_EXCEEDED", OutOfTime),
        ("NOT_FOUND", NotStored),
        ("PERMISSION_DENIED", NotAllowed),
        ("RESOURCE_EXHAUSTED", InvalidRequest),
        ("FAILED_PRECONDITION", NoMatchingWorker),
        ("ABORTED", InternalError),
        ("DATA_LOSS", InternalError),
        ("UNIMPLEMENTED", NotAFarm),
        ("INTERNAL", InternalError),
        ("UNAVAILABLE", Unreachable),
        ("UNAUTHENTICATED", NotAuthenticated),
    ],
)
def test_answers_without_a_reason_of_ours(status: str, error: type[FarmError]) -> None:
    found = error_of(Refusal(status, details="words of a stranger"), address="farm:1")
    assert type(found) is error
    assert "farm:1" in str(found)
    assert type(error_of(Refusal(status, details=None), address="farm:1")) is error


def test_an_unknown_reason_falls_back_to_the_status() -> None:
    found = error_of(Refusal("UNAVAILABLE", **{REASON_KEY: "from_the_future", "other-bin": b"1"}), address="farm:1")
    assert type(found) is Unreachable


def test_no_grpc_type_is_chained_to_what_the_user_sees() -> None:
    assert not any(cls.__module__.startswith("grpc") for error in BY_REASON.values() for cls in error.__mro__)
