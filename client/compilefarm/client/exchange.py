"""One graph's talk with the farm: ask, wait, fetch; and ask again where that can help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from compilefarm.client.blobs import fetch, send_missing
from compilefarm.client.clock import Budget
from compilefarm.client.config import Priority
from compilefarm.client.connection import Connection
from compilefarm.client.records import Entry, Outcome
from compilefarm.client.runtime import Encoded, Runtime
from compilefarm.client.silence import Cancellable, Silence
from compilefarm.client.verification import check_origin
from compilefarm.core.artifacts import blobs_to_run, check_guards
from compilefarm.core.enum_words import word_of
from compilefarm.core.errors import (
    Busy,
    Draining,
    FarmError,
    InternalError,
    MissingBlobs,
    NotStored,
    OutOfTime,
    Silent,
    StoreUnavailable,
    Unreachable,
    WorkerLost,
)
from compilefarm.core.keys import FORMATS, key_of
from compilefarm.core.metadata import REQUEST_KEY, TENANT_KEY, say_key_formats
from compilefarm.core.printable import printable
from compilefarm.core.public_keys import PublicKey
from compilefarm.v1 import compile_service_pb2 as wire
from compilefarm.v1.job_pb2 import CompileFailure, FailureKind, Phase
from compilefarm.v1.manifest_pb2 import Manifest

OnProgress = Callable[[str, float, int], None]

_OUTCOMES: dict[int, Outcome] = {
    wire.OUTCOME_HIT: "hit",
    wire.OUTCOME_COMPILED: "compiled",
    wire.OUTCOME_JOINED: "joined",
}
_PRIORITIES: dict[Priority, wire.Priority.ValueType] = {
    "interactive": wire.PRIORITY_INTERACTIVE,
    "background": wire.PRIORITY_BACKGROUND,
    "prewarm": wire.PRIORITY_PREWARM,
}
# The same question may have an answer a moment later: the key leads to the same job, to its result, or to a new job
# (a blob that is gone makes the entry a miss).
_WORTH_ASKING_AGAIN = (Draining, WorkerLost, StoreUnavailable, Unreachable, MissingBlobs, NotStored)
_SECONDS_BEFORE_ASKING_AGAIN = (1.0, 3.0)
# A farm that had accepted the graph and went away is probably being started anew, which takes seconds; the key leads to
# the job's result then, or to the job.
_GONE = (Draining, Unreachable)
_SECONDS_BEFORE_REJOINING = (1.0, 2.0, 4.0, 8.0, 15.0)
# A farm that says "at once" again and again is not asked in a tight loop.
_LEAST_SECONDS_WHEN_BUSY = 0.5


class CompileFailed(Exception):
    """The farm tried and has no artifact.

    Attributes:
        reason: the kind of failure as a word ("compile_error", "timeout").
    """

    def __init__(self, failure: CompileFailure) -> None:
        super().__init__(printable(": ".join(text for text in (failure.error_type, failure.message) if text)))
        self.reason = word_of(FailureKind, failure.kind, prefix="FAILURE_KIND_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An artifact, fetched and fit to be loaded here.

    Attributes:
        outcome: how the farm came by it.
        manifest: its description.
        blobs: stored bytes by digest, all that the manifest names.
    """

    outcome: Outcome
    manifest: Manifest
    blobs: Mapping[str, bytes]


class Exchange:
    """The talk about one graph.

    Args:
        encoded: the graph.
        connection: to the farm.
        runtime: gets ready for loading while the farm works.
        budget: what the talk may take.
        priority: how urgent a compile is.
        tenant: for whom it is; empty if that is not said.
        trusted: who may say that an artifact is for the graph; if there are none, anybody.
        entry: where it is noted.
    """

    def __init__(
        self,
        encoded: Encoded,
        *,
        connection: Connection,
        runtime: Runtime,
        budget: Budget,
        priority: Priority,
        tenant: str,
        trusted: Sequence[PublicKey] = (),
        entry: Entry,
    ) -> None:
        self._encoded = encoded
        self._connection = connection
        self._runtime = runtime
        self._budget = budget
        self._priority = _PRIORITIES[priority]
        self._entry = entry
        told = {REQUEST_KEY: entry.record.request_id, TENANT_KEY: tenant}
        self._metadata = (say_key_formats(FORMATS), *((key, value) for key, value in told.items() if value))
        self._trusted = trusted
        self._is_accepted = False

    def look_up(self) -> Delivery:
        """Fetches the artifact if it is stored.

        Raises:
            NotStored: it is not; the message names the key.
            FarmError: the farm gave none.
        """
        try:
            with self._leaving_the_dead():
                with self._entry.phase("wait"):
                    manifest = self._ask_lookup()
                return self._fetch(manifest, outcome="hit")
        except NotStored:
            key = key_of(self._encoded.job).text
            self._entry.name_key(key)
            raise NotStored(f"nothing is stored under {key}: prewarm this graph, or ask with on_miss='wait'") from None

    def compile(self, *, on_progress: OnProgress) -> Delivery:
        """Fetches the artifact, and waits for the farm to make it if it is not stored.

        Raises:
            CompileFailed: the farm tried and has none.
            FarmError: the farm gave none.
        """
        with self._entry.phase("wait"):
            # An address at which nobody answers is not asked again.
            self._connection.line(within_seconds=self._budget.left())
        with self._leaving_the_dead():
            return self._compile(on_progress)

    def _compile(self, on_progress: OnProgress) -> Delivery:
        asking_again, rejoining = list(_SECONDS_BEFORE_ASKING_AGAIN), list(_SECONDS_BEFORE_REJOINING)
        while True:
            try:
                return self._compile_once(on_progress)
            except Busy as error:
                delay = max(error.retry_after_seconds, _LEAST_SECONDS_WHEN_BUSY)
                if not self._budget.allows(max(delay, error.estimated_wait_seconds)):
                    raise
            except Silent:
                # It would be silent again.
                raise
            except _WORTH_ASKING_AGAIN as error:
                delays = rejoining if self._is_accepted and isinstance(error, _GONE) else asking_again
                if not delays or not self._budget.allows(delays[0]):
                    raise
                delay = delays.pop(0)
            with self._entry.phase("wait"):
                self._budget.wait(delay)

    @contextmanager
    def _leaving_the_dead(self) -> Iterator[None]:
        """Has the farm left alone for a while if the talk ends because nobody is there, or nobody who talks."""
        try:
            yield
        except OutOfTime:
            if not self._is_accepted:
                self._connection.give_up(Silent("the farm had all the time of a graph and did not even take it"))
            raise
        except FarmError as error:
            self._connection.give_up(error)
            raise

    def _compile_once(self, on_progress: OnProgress) -> Delivery:
        with self._entry.phase("wait"):
            finished = self._ask_with_tensors(on_progress)
        if finished.HasField("failure"):
            raise CompileFailed(finished.failure)
        if not finished.HasField("manifest") or finished.outcome not in _OUTCOMES:
            raise InternalError("the farm says that it is done, but not what came of it: upgrade the older end")
        return self._fetch(finished.manifest, outcome=_OUTCOMES[finished.outcome])

    def _ask_with_tensors(self, on_progress: OnProgress) -> wire.Finished:
        """Asks; sends the tensors that the farm says it misses, which it takes from nobody else, and asks again."""
        try:
            return self._ask_compile(on_progress)
        except MissingBlobs:
            if not self._encoded.blobs:
                raise
        sent = send_missing(self._encoded.blobs, connection=self._connection, budget=self._budget)
        self._entry.count(sent=sent)
        return self._ask_compile(on_progress)

    def _ask_lookup(self) -> Manifest:
        request = wire.LookupRequest(job=self._encoded.job)
        line = self._connection.line(within_seconds=self._budget.left())
        self._entry.count(sent=request.ByteSize())
        with self._connection.calls():
            call = line.compiles.Lookup.future(request, timeout=self._budget.left(), metadata=self._metadata)
            self._preload_during(call)
            with Silence().watching(call):
                manifest = call.result().manifest
        self._is_accepted = True
        return manifest

    def _ask_compile(self, on_progress: OnProgress) -> wire.Finished:
        request = wire.CompileRequest(job=self._encoded.job, priority=self._priority)
        line = self._connection.line(within_seconds=self._budget.left())
        self._entry.count(sent=request.ByteSize())
        with self._connection.calls():
            call = line.compiles.Compile(request, timeout=self._budget.left(), metadata=self._metadata)
            self._preload_during(call)
            silence = Silence()
            with silence.watching(call):
                return self._listen(silence.broken_by(call), on_progress)

    def _preload_during(self, call: Cancellable) -> None:
        """Gets ready for loading while gRPC's own threads send a request and receive the first that is said to it."""
        try:
            self._runtime.preload()
        except BaseException:
            call.cancel()
            raise

    def _listen(self, responses: Iterator[wire.CompileResponse], on_progress: OnProgress) -> wire.Finished:
        for response in responses:
            event = response.WhichOneof("event")
            if event == "accepted":
                self._is_accepted = True
                self._entry.name_key(response.accepted.key)
            elif event == "progress":
                progress = response.progress
                phase = word_of(Phase, progress.phase, prefix="PHASE_")
                on_progress(phase, progress.elapsed_seconds, progress.jobs_ahead)
            elif event == "finished":
                return response.finished
        raise InternalError("the farm ended the talk without an answer")

    def _fetch(self, manifest: Manifest, *, outcome: Outcome) -> Delivery:
        self._entry.name_key(manifest.key)
        check_origin(manifest, self._encoded.job, trusted=self._trusted)
        self._runtime.check_fits(manifest, self._encoded.job.environment)
        check_guards(manifest, self._encoded.job)
        with self._entry.phase("fetch"):
            blobs = fetch(blobs_to_run(manifest), connection=self._connection, budget=self._budget)
        self._entry.count(fetched=sum(map(len, blobs.values())))
        return Delivery(outcome=outcome, manifest=manifest, blobs=blobs)
