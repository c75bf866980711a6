"""One Compile call: asks a farm for the artifact of a job, and listens until the farm is done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from compilefarm.client.blobs import send_missing
from compilefarm.client.clock import Budget
from compilefarm.client.connection import Connection
from compilefarm.client.silence import Cancellable, Silence
from compilefarm.core.errors import InternalError, MissingBlobs
from compilefarm.core.keys import FORMATS
from compilefarm.core.metadata import REQUEST_KEY, TENANT_KEY, say_key_formats
from compilefarm.v1 import compile_service_pb2 as wire


class CallObserver(Protocol):
    """Is told of the events of a call."""

    def during(self, call: Cancellable) -> AbstractContextManager[None]:
        """Entered when the request is on its way, and left when the call has ended."""

    def sent(self, size_bytes: int) -> None:
        """Called with the number of bytes that were sent."""

    def accepted(self, key: str) -> None:
        """Called with the key when the farm has accepted the job."""

    def progressed(self, progress: wire.Progress) -> None:
        """Called now and then while the farm works."""


def metadata_of(*, tenant: str = "", request_id: str = "") -> tuple[tuple[str, str], ...]:
    """Metadata of a call about a job: which formats of keys are known here, and what is not empty of the arguments.

    Args:
        tenant: for whom the job is.
        request_id: what the log of the farm calls the request.
    """
    told = {REQUEST_KEY: request_id, TENANT_KEY: tenant}
    return (say_key_formats(FORMATS), *((key, value) for key, value in told.items() if value))


class CompileCall:
    """Asks for one compile.

    Args:
        request: the job, and how urgent it is.
        blobs: bytes of the tensors that the graph holds, by digest.
        connection: to the farm.
        metadata: of the call.
        budget: seconds that the call may take.
        observer: is told of its events.
    """

    def __init__(
        self,
        request: wire.CompileRequest,
        *,
        blobs: Mapping[str, bytes],
        connection: Connection,
        metadata: tuple[tuple[str, str], ...],
        budget: Budget,
        observer: CallObserver,
    ) -> None:
        self._request = request
        self._blobs = blobs
        self._connection = connection
        self._metadata = metadata
        self._budget = budget
        self._observer = observer

    def finish(self) -> wire.Finished:
        """Returns what the farm says when it is done with the job. Sends the tensors that the farm says it misses,
        which it takes from nobody else, and asks again.

        Raises:
            FarmError: the farm gave no answer.
        """
        try:
            return self._ask()
        except MissingBlobs:
            if not self._blobs:
                raise
        self._observer.sent(send_missing(self._blobs, connection=self._connection, budget=self._budget))
        return self._ask()

    def _ask(self) -> wire.Finished:
        stubs = self._connection.stubs(within_seconds=self._budget.left())
        self._observer.sent(self._request.ByteSize())
        with self._connection.calls():
            call = stubs.compiles.Compile(self._request, timeout=self._budget.timeout(), metadata=self._metadata)
            with self._observer.during(call):
                silence = Silence()
                with silence.watching(call):
                    return self._listen(silence.noting_activity(call))

    def _listen(self, responses: Iterator[wire.CompileResponse]) -> wire.Finished:
        for response in responses:
            event = response.WhichOneof("event")
            if event == "accepted":
                self._observer.accepted(response.accepted.key)
            elif event == "progress":
                self._observer.progressed(response.progress)
            elif event == "finished":
                return response.finished
        raise InternalError("the farm ended the call without an answer")
