"""Packages of a recording: which of them a farm has, and having it keep the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compilefarm.client.connection import Connection
from compilefarm.core.errors import FarmError
from compilefarm.core.recorded_packages import RecordedPackage
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.package_service_pb2 import FindRequest, PublishRequest

PackageStanding = Literal["stored", "missing", "published", "left out", "cannot"]
# An operator or a pipeline waits; a pod would not.
_SECONDS_PER_QUESTION = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPackage:
    """A package of a recording, and what the farm has of it.

    Attributes:
        recorded: the package.
        standing: "stored", "missing" (it would be published), "published" (it was), "left out" (it holds where it was
            recorded, and something else is prewarmed), or "cannot" (the farm does not keep it).
        reason: why it cannot be kept, as a word for machines; empty where it can.
        problem: the same for people.
    """

    recorded: RecordedPackage
    standing: PackageStanding
    reason: str = ""
    problem: str = ""


class PackagePlanner:
    """Asks a farm for packages of a recording. What the farm refuses is noted with each of them.

    Args:
        connection: to the farm.
        timeout_seconds: limit of one call.
    """

    def __init__(self, connection: Connection, *, timeout_seconds: float = _SECONDS_PER_QUESTION) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds

    def plan(self, recorded: Sequence[RecordedPackage]) -> list[PlannedPackage]:
        """Returns what the farm has of packages."""
        return [_noting_refusal(PlannedPackage(recorded=each, standing="missing"), self._look_up) for each in recorded]

    def publish(self, planned: Sequence[PlannedPackage]) -> list[PlannedPackage]:
        """Has the farm keep what is missing, as it was signed, and returns what became of each package."""
        return [_noting_refusal(each, self._publish) if each.standing == "missing" else each for each in planned]

    def _look_up(self, planned: PlannedPackage) -> PlannedPackage:
        return replace(planned, standing="stored") if self._is_stored(planned.recorded.package) else planned

    def _is_stored(self, package: SignedPackage) -> bool:
        stubs = self._connection.stubs()
        with self._connection.calls():
            request = FindRequest(key=package.key)
            answers = stubs.packages.Find(request, timeout=self._timeout_seconds)
            try:
                return any(answer.package.name == package.name for answer in answers)
            finally:
                answers.cancel()

    def _publish(self, planned: PlannedPackage) -> PlannedPackage:
        stubs = self._connection.stubs()
        with self._connection.calls():
            request = PublishRequest(package=planned.recorded.package)
            stubs.packages.Publish(request, timeout=self._timeout_seconds)
        return replace(planned, standing="published")


def left_out(recorded: Sequence[RecordedPackage]) -> list[PlannedPackage]:
    """Returns packages that hold where they were recorded, for a plan that is for something else."""
    return [PlannedPackage(recorded=each, standing="left out") for each in recorded]


def _noting_refusal(planned: PlannedPackage, ask: Callable[[PlannedPackage], PlannedPackage]) -> PlannedPackage:
    try:
        return ask(planned)
    except FarmError as error:
        return replace(planned, standing="cannot", reason=error.reason, problem=str(error))
