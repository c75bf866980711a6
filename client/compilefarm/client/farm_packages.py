"""Packages in a farm, as they are asked for before Dynamo traces a function: whatever goes wrong is a miss with its
reason, and takes no longer than it may. Nothing of a package is read before its signature is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compilefarm.client.announcements import announce_unpublished
from compilefarm.client.clock import Clock
from compilefarm.client.config import RECORD, TRUSTED_PACKAGE_KEYS, ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_calls import calling, read_signing_key
from compilefarm.client.recorder import NO_RECORDER, PackageRecorder
from compilefarm.core.errors import CorruptArtifact, FarmError, UntrustedArtifact
from compilefarm.core.packages import MAX_CONTENT_BYTES
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.package_service_pb2 import FindRequest, FindResponse, PublishRequest

if TYPE_CHECKING:
    from compilefarm.packages.packing import Found
    from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub

# A pod that waits for packages traces nothing meanwhile.
TIMEOUT_SECONDS = 5.0
# Of one key. A farm sends those of each publisher in turn: who publishes many keeps none of others from this pod.
_MOST_PACKAGES = 4096
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a farm has of a key.

    Attributes:
        found: what can be installed.
        reasons: why the rest cannot; or why the farm was not asked.
    """

    found: Sequence[Found] = ()
    reasons: Sequence[str] = ()


class FarmPackages:
    """Packages in a farm. Threads share it, and forked processes may go on using it.

    Args:
        config: of the client.
        connection: to the farm.
        clock: time.
        recorder: takes note of what is published.

    Raises:
        ConfigurationError: the signing key cannot be used.
    """

    def __init__(
        self, config: ClientConfig, *, connection: Connection, clock: Clock, recorder: PackageRecorder = NO_RECORDER
    ) -> None:
        self._connection = connection
        self._recorder = recorder
        self._clock = clock
        self._signing_key = read_signing_key(config.trust.package_signing_key, signs="packages")
        own = (self._signing_key.public,) if self._signing_key is not None else ()
        self._trusted = (*config.trust.trusted_package_keys, *own)

    def find(self, key: str) -> Answer:
        """Returns the packages of a key that this pod may install; none while it records what it asks for."""
        if self._recorder.is_recording:
            return Answer(reasons=[f"this process records all that it asks for ({RECORD})"])
        if not self._trusted:
            return Answer(reasons=[f"no key is trusted to sign packages ({TRUSTED_PACKAGE_KEYS})"])
        try:
            return self._read(self._receive(key))
        except FarmError as error:
            self._connection.give_up(error)
            return Answer(reasons=[_said(error)])

    def refuse(self, function: str, reason: str) -> None:
        """Notes that what Dynamo found out about a function is not published."""
        announce_unpublished(function, reason)
        self._recorder.note_unpublished(function, reason)

    def publish(self, found: Found) -> str:
        """Publishes what Dynamo found out, and records it; returns why that failed, empty if it did not."""
        from compilefarm.packages.frame_encoding import Unsayable
        from compilefarm.packages.packing import name_of, pack

        if self._signing_key is None:
            return "there is no key to sign it with"
        try:
            name = name_of(found, key_id=self._signing_key.public.key_id)
            package = SignedPackage(key=found.key, name=name, content=pack(found))
            package.signature.CopyFrom(self._signing_key.signature_of_package(package))
            self._recorder.note_package(package, function=found.lookup.qualified_name)
            with self._calling() as (stub, timeout_seconds):
                stub.Publish(PublishRequest(package=package), timeout=timeout_seconds)
        except Unsayable as error:
            self._recorder.note_unpublished(found.lookup.qualified_name, str(error))
            return str(error)
        except FarmError as error:
            self._connection.give_up(error)
            return _said(error)
        return ""

    def _receive(self, key: str) -> list[SignedPackage]:
        packages, size_bytes = list[SignedPackage](), 0
        with self._calling() as (stub, timeout_seconds):
            answers = stub.Find(FindRequest(key=key), timeout=timeout_seconds)
            try:
                for answer in answers:
                    packages.append(_checked(answer, key=key))
                    size_bytes += len(packages[-1].content)
                    if len(packages) >= _MOST_PACKAGES or size_bytes >= _MOST_BYTES:
                        break
            finally:
                answers.cancel()
        return packages

    def _read(self, packages: Sequence[SignedPackage]) -> Answer:
        # A pod that finds nothing imports nothing more.
        if not packages:
            return Answer()
        from compilefarm.core.signatures import check_signature_of_package
        from compilefarm.packages.code_checks import InvalidPackage
        from compilefarm.packages.packing import read

        found: list[Found] = []
        reasons: list[str] = []
        for package in packages:
            try:
                check_signature_of_package(package, trusted=self._trusted)
                found.append(read(package))
            except (UntrustedArtifact, InvalidPackage) as error:
                reasons.append(f"a package was refused: {error}")
        return Answer(found=found, reasons=reasons)

    @contextmanager
    def _calling(self) -> Iterator[tuple[PackageServiceStub, float | None]]:
        with calling(self._connection, timeout_seconds=TIMEOUT_SECONDS, clock=self._clock) as (stubs, seconds):
            yield stubs.packages, seconds


def _checked(answer: FindResponse, *, key: str) -> SignedPackage:
    package = answer.package
    if package.key != key or len(package.content) > MAX_CONTENT_BYTES:
        raise CorruptArtifact(f"the farm answered with a package of {package.key[:100]!r} to a question for {key!r}")
    return package


def _said(error: FarmError) -> str:
    return f"[{error.reason}] {' '.join(str(error).split())}"
