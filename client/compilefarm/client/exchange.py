"""Obtains the artifact of one graph: looks it up or has it compiled, and downloads it; asks again where it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from compilefarm.client.blobs import fetch
from compilefarm.client.clock import Budget
from compilefarm.client.compile_call import CompileCall, metadata_of
from compilefarm.client.config import ClientConfig, Priority
from compilefarm.client.connection import Connection
from compilefarm.client.origins import require_origin
from compilefarm.client.records import Outcome, RecordWriter
from compilefarm.client.retries import INTERACTIVE, Retries
from compilefarm.client.runtime import Encoded, Runtime
from compilefarm.client.silence import Cancellable, Silence
from compilefarm.core.artifacts import blobs_to_run, check_guards
from compilefarm.core.enum_words import word_of
from compilefarm.core.errors import FarmError, InternalError, NotStored, OutOfTime, Silent
from compilefarm.core.keys import key_of
from compilefarm.core.printable import printable
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


class CompileFailed(Exception):
    """The compile failed on the farm.

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
    """Asks the farm about one graph. It is the `CallObserver` of its calls.

    Args:
        encoded: the graph.
        connection: to the farm.
        runtime: gets ready for loading while the farm works.
        config: says how urgent a compile is, for whom it is, and who may say that an artifact is for the graph.
        budget: seconds that all calls may take together.
        writer: of the record of the graph.
        on_progress: called while the farm works.
    """

    def __init__(
        self,
        encoded: Encoded,
        *,
        connection: Connection,
        runtime: Runtime,
        config: ClientConfig,
        budget: Budget,
        writer: RecordWriter,
        on_progress: OnProgress,
    ) -> None:
        self._encoded = encoded
        self._connection = connection
        self._runtime = runtime
        self._config = config
        self._budget = budget
        self._writer = writer
        self._on_progress = on_progress
        self._is_accepted = False
        self._waits_for = ""
        self._imports = True

    def look_up(self) -> Delivery:
        """Fetches the artifact if it is stored.

        Raises:
            NotStored: it is not; the message names the key.
            FarmError: there is another reason why the artifact cannot be had.
        """
        try:
            with self._giving_up_unreachable():
                with self._writer.step("wait"):
                    manifest = self._ask_lookup()
                return self._fetch(manifest, outcome="hit")
        except NotStored:
            key = key_of(self._encoded.job).text
            self._writer.note_key(key)
            raise NotStored(f"nothing is stored under {key}: prewarm this graph, or ask with on_miss='wait'") from None

    def prefetch(self) -> Delivery:
        """As `look_up`, in a thread beside one that imports: it imports nothing."""
        self._imports = False
        return self.look_up()

    def compile(self) -> Delivery:
        """Fetches the artifact, and waits for the farm to make it if it is not stored.

        Raises:
            CompileFailed: the farm tried and has none.
            FarmError: the farm gave none.
        """
        with self._writer.step("wait"):
            # An address at which nobody answers is not asked again.
            self._connection.stubs(within_seconds=self._budget.left())
        retries = Retries(INTERACTIVE, budget=self._budget, wait=self._wait)
        with self._giving_up_unreachable():
            return retries.ask(self._compile_once, is_accepted=lambda: self._is_accepted)

    @contextmanager
    def during(self, call: Cancellable) -> Iterator[None]:
        """Imports what loading needs, while gRPC's own threads send the request and receive the first response."""
        try:
            if self._imports:
                self._runtime.preload()
        except BaseException:
            call.cancel()
            raise
        yield

    def sent(self, size_bytes: int) -> None:
        """Counts the bytes."""
        self._writer.add_bytes(sent=size_bytes)

    def accepted(self, key: str) -> None:
        """Notes the key, and that the farm knows the job from now on."""
        self._is_accepted = True
        self._writer.note_key(key)

    def progressed(self, progress: wire.Progress) -> None:
        """Calls `on_progress`."""
        self._waits_for = printable(progress.waits_for)
        phase = word_of(Phase, progress.phase, prefix="PHASE_")
        self._on_progress(phase, progress.elapsed_seconds, progress.jobs_ahead)

    @contextmanager
    def _giving_up_unreachable(self) -> Iterator[None]:
        """Has the farm left alone for a while if no answer comes because nobody is there, or the farm hangs."""
        try:
            yield
        except OutOfTime as error:
            if not self._is_accepted:
                self._connection.give_up(Silent("the farm had all the time of a graph and did not even take it"))
            if self._waits_for:
                raise OutOfTime(f"{error}; the job waited for {self._waits_for}") from error
            raise
        except FarmError as error:
            self._connection.give_up(error)
            raise

    def _wait(self, seconds: float) -> None:
        with self._writer.step("wait"):
            self._budget.wait(seconds)

    def _compile_once(self) -> Delivery:
        call = CompileCall(
            wire.CompileRequest(job=self._encoded.job, priority=_PRIORITIES[self._config.priority]),
            blobs=self._encoded.blobs,
            connection=self._connection,
            metadata=self._metadata(),
            budget=self._budget,
            observer=self,
        )
        with self._writer.step("wait"):
            finished = call.finish()
        if finished.HasField("failure"):
            raise CompileFailed(finished.failure)
        if not finished.HasField("manifest") or finished.outcome not in _OUTCOMES:
            raise InternalError("the farm says that it is done, but not what came of it: upgrade the older end")
        return self._fetch(finished.manifest, outcome=_OUTCOMES[finished.outcome])

    def _ask_lookup(self) -> Manifest:
        request = wire.LookupRequest(job=self._encoded.job)
        stubs = self._connection.stubs(within_seconds=self._budget.left())
        self.sent(request.ByteSize())
        with self._connection.calls():
            call = stubs.compiles.Lookup.future(request, timeout=self._budget.timeout(), metadata=self._metadata())
            with self.during(call), Silence().watching(call):
                manifest = call.result().manifest
        self._is_accepted = True
        return manifest

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return metadata_of(tenant=self._config.tenant, request_id=self._writer.record.request_id)

    def _fetch(self, manifest: Manifest, *, outcome: Outcome) -> Delivery:
        self._writer.note_key(manifest.key)
        job = self._encoded.job
        require_origin(manifest, job, trusted=self._config.trust.trusted_keys)
        self._runtime.require_fit(manifest, job.environment)
        check_guards(manifest.guards, job)
        with self._writer.step("fetch"):
            blobs = fetch(blobs_to_run(manifest), connection=self._connection, budget=self._budget)
        self._writer.add_bytes(fetched=sum(map(len, blobs.values())))
        return Delivery(outcome=outcome, manifest=manifest, blobs=blobs)
