"""The talk about one graph, scripted answer by answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import grpc
import grpc_testing
import pytest

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, manifest_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import ESTIMATED_WAIT_KEY, REASON_KEY, RETRY_AFTER_KEY, NotAllowed, NotAuthenticated
from compilefarm.core.keys import key_of
from compilefarm.v1 import blob_service_pb2 as blobs
from compilefarm.v1 import compile_service_pb2 as compiles
from compilefarm.v1 import job_pb2
from compilefarm.v1.manifest_pb2 import Manifest

pytestmark = pytest.mark.timeout(60)
FIND_MISSING, READ, WRITE = (
    blobs.DESCRIPTOR.services_by_name["BlobService"].methods_by_name[name] for name in ("FindMissing", "Read", "Write")
)
COMPILE = compiles.DESCRIPTOR.services_by_name["CompileService"].methods_by_name["Compile"]
MANIFEST = manifest_of(b"program")
OK = grpc.StatusCode.OK


class Script:
    """A farm whose every answer the test gives by hand, and a graph that is being compiled with it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.runtime = FakeRuntime()
        self.ledger = Ledger()
        self.progress: list[tuple[str, float, int]] = []
        self.noted = threading.Event()
        self.asked = compiles.CompileRequest()
        self._channel = grpc_testing.channel(
            [*blobs.DESCRIPTOR.services_by_name.values(), *compiles.DESCRIPTOR.services_by_name.values()],
            grpc_testing.strict_fake_time(0),
        )
        dependencies = Dependencies(
            runtime=self.runtime, clock=self.clock, ledger=self.ledger, open_channel=lambda _: self._channel
        )
        self.farm = Farm("farm:1", on_progress=self._note, dependencies=dependencies, **settings)

    def start(self, graph: FakeGraphModule | None = None) -> Future[Any]:
        program: Future[Any] = Future()

        def ask() -> None:
            try:
                program.set_result(self.farm.backend(graph or FakeGraphModule(), []))
            except Exception as error:  # noqa: BLE001 - raised by who waits for the program
                program.set_exception(error)

        # A test that fails leaves questions without an answer: nobody waits for who asked them.
        threading.Thread(target=ask, daemon=True).start()
        return program

    def answer_probe(self) -> None:
        self.answer_find_missing([])

    def answer_find_missing(self, digests: Sequence[str]) -> list[str]:
        _, request, call = self._channel.take_unary_unary(FIND_MISSING)
        call.send_initial_metadata(())
        call.terminate(blobs.FindMissingResponse(digests=digests), (), OK, "")
        return list(request.digests)

    def refuse_probe(self, status: str, details: str = "", *, told: Sequence[tuple[str, str]] = ()) -> None:
        _, _, call = self._channel.take_unary_unary(FIND_MISSING)
        call.terminate(blobs.FindMissingResponse(), told, grpc.StatusCode[status], details)

    def take_write(self) -> bytes:
        _, call = self._channel.take_stream_unary(WRITE)
        call.requests_closed()
        content = b""
        # One request for each piece; the scripted content fits into one.
        content += call.take_request().chunk
        call.send_initial_metadata(())
        call.terminate(blobs.WriteResponse(size_bytes=len(content)), (), OK, "")
        return content

    def take_compile(self, *events: compiles.CompileResponse) -> Any:
        _, self.asked, call = self._channel.take_unary_stream(COMPILE)
        call.send_initial_metadata(())
        for event in events:
            call.send_response(event)
        return call

    def break_off_compile(self, *, reason: str) -> None:
        """Ends the talk after the job was accepted and a worker had it."""
        accepted = compiles.CompileResponse(accepted=compiles.Accepted(key="named"))
        progress = compiles.CompileResponse(progress=compiles.Progress(phase=job_pb2.PHASE_COMPILING))
        call = self.take_compile(accepted, progress)
        # An error would overtake them.
        self.noted.wait()
        call.terminate([(REASON_KEY, reason)] if reason else (), grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def refuse_compile(self, status: str, *, reason: str = "", retry_after: str = "", wait: str = "") -> None:
        told = [(REASON_KEY, reason)] if reason else []
        told += [(RETRY_AFTER_KEY, retry_after)] if retry_after else []
        told += [(ESTIMATED_WAIT_KEY, wait)] if wait else []
        self.take_compile().terminate(told, grpc.StatusCode[status], f"because of {reason or status}")

    def finish_compile(self, manifest: Manifest = MANIFEST, outcome: str = "OUTCOME_HIT") -> None:
        call = self.take_compile()
        finished = compiles.Finished(outcome=compiles.Outcome.Value(outcome), manifest=manifest)
        finished.manifest.key = key_of(self.asked.job).text
        call.send_response(compiles.CompileResponse(finished=finished))
        call.terminate((), OK, "")

    def fail_compile(self, kind: str | int, message: str) -> None:
        number: Any = job_pb2.FailureKind.Value(kind) if isinstance(kind, str) else kind
        failure = job_pb2.CompileFailure(kind=number, message=message, error_type="torch.Bad")
        finished = compiles.Finished(outcome=compiles.OUTCOME_COMPILED, failure=failure)
        self.take_compile(compiles.CompileResponse(finished=finished)).terminate((), OK, "")

    def answer_read(self, content: bytes = b"program") -> blobs.ReadRequest:
        _, request, call = self._channel.take_unary_stream(READ)
        call.send_initial_metadata(())
        call.send_response(blobs.ReadResponse(chunk=content))
        call.terminate((), OK, "")
        return request

    def refuse_read(self, status: str, *, reason: str) -> None:
        _, _, call = self._channel.take_unary_stream(READ)
        call.terminate([(REASON_KEY, reason)], grpc.StatusCode[status], "gone")

    @property
    def record(self) -> GraphRecord:
        (record,) = self.ledger.records()
        return record

    def _note(self, phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
        self.progress.append((phase, elapsed_seconds, jobs_ahead))
        self.noted.set()


@pytest.fixture
def script() -> Script:
    return Script()


def where(program: Future[Any]) -> str:
    place: str = program.result()()[0]
    return place


@pytest.mark.parametrize(
    ("outcome", "expected"), [("OUTCOME_HIT", "hit"), ("OUTCOME_COMPILED", "compiled"), ("OUTCOME_JOINED", "joined")]
)
def test_an_artifact_is_fetched_and_loaded(script: Script, outcome: str, expected: str) -> None:
    program = script.start()
    script.answer_probe()
    script.finish_compile(outcome=outcome)
    assert script.answer_read().digest == digest_of(b"program")
    assert program.result()(1, 2) == ("farm", b"program", (1, 2))
    assert (script.record.outcome, script.record.bytes_fetched) == (expected, 7)
    assert script.record.key == key_of(script.asked.job).text
    assert script.record.bytes_sent > 0
    assert script.runtime.preloads == 1
    assert script.runtime.local_compiles == 0


def test_the_compiler_stack_is_imported_while_the_farm_works(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    call = script.take_compile()
    # The stream says nothing yet: were the import left for later, it could not have begun.
    progress = compiles.Progress(phase=job_pb2.PHASE_TUNING, elapsed_seconds=2.5, jobs_ahead=3)
    call.send_response(compiles.CompileResponse(accepted=compiles.Accepted(key="named")))
    call.send_response(compiles.CompileResponse(progress=progress))
    call.send_response(compiles.CompileResponse(progress=compiles.Progress(phase=job_pb2.PHASE_UNSPECIFIED)))
    call.send_response(compiles.CompileResponse())
    finished = compiles.Finished(outcome=compiles.OUTCOME_COMPILED, manifest=MANIFEST)
    finished.manifest.key = key_of(script.asked.job).text
    call.send_response(compiles.CompileResponse(finished=finished))
    call.terminate((), OK, "")
    script.answer_read()
    assert where(program) == "farm"
    assert script.progress == [("tuning", 2.5, 3), ("unspecified", 0.0, 0)]
    assert script.runtime.preloads == 1


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("INVALID_ARGUMENT", "invalid_request", "invalid_request"),
        ("INVALID_ARGUMENT", "digest_mismatch", "digest_mismatch"),
        ("FAILED_PRECONDITION", "no_matching_worker", "no_matching_worker"),
        ("INTERNAL", "internal", "internal"),
        ("DATA_LOSS", "", "internal"),
        ("UNIMPLEMENTED", "", "not_a_farm"),
        ("DEADLINE_EXCEEDED", "", "out_of_time"),
        ("RESOURCE_EXHAUSTED", "", "invalid_request"),
    ],
)
def test_a_refusal_ends_in_a_local_compile_at_once(script: Script, status: str, reason: str, expected: str) -> None:
    program = script.start()
    script.answer_probe()
    script.refuse_compile(status, reason=reason)
    assert where(program) == "local"
    assert (script.record.outcome, script.record.reason) == ("fallback", expected)
    assert script.clock.waits == []


def test_a_graph_whose_time_is_over_says_what_the_farm_waited_for(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    accepted = compiles.CompileResponse(accepted=compiles.Accepted(key="named"))
    progress = compiles.Progress(phase=job_pb2.PHASE_QUEUED, waits_for="a worker of the environment gpu\x1b[2J")
    call = script.take_compile(accepted, compiles.CompileResponse(progress=progress))
    # An error would overtake them.
    script.noted.wait()
    call.terminate((), grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert where(program) == "local"
    assert script.record.reason == "out_of_time"
    assert script.record.message is not None
    assert "raise timeout_seconds; the job waited for a worker of the environment gpu\\x1b" in script.record.message


@pytest.mark.parametrize(
    ("status", "error"), [("PERMISSION_DENIED", NotAllowed), ("UNAUTHENTICATED", NotAuthenticated)]
)
def test_not_being_allowed_is_said_and_costs_the_pod_nothing(
    script: Script, status: str, error: type[NotAllowed], caplog: pytest.LogCaptureFixture
) -> None:
    program = script.start()
    script.answer_probe()
    script.refuse_compile(status, reason=error.reason)
    assert where(program) == "local"
    assert (script.record.outcome, script.record.reason) == ("fallback", error.reason)
    assert [line.levelno for line in caplog.records if f"because of {error.reason}" in line.getMessage()] == [30]


def test_a_token_that_is_right_again_is_believed(script: Script) -> None:
    program = script.start()
    script.refuse_probe("UNAUTHENTICATED", told=[(REASON_KEY, "not_authenticated")])
    assert where(program) == "local"
    program = script.start()
    script.answer_probe()
    script.finish_compile()
    script.answer_read()
    assert where(program) == "farm"


def test_a_full_queue_is_waited_for(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    for delay in ("20", "40", "0"):
        script.refuse_compile("RESOURCE_EXHAUSTED", reason="busy", retry_after=delay)
    script.finish_compile()
    script.answer_read()
    assert where(program) == "farm"
    assert script.clock.waits == [20.0, 40.0, 0.5]
    assert script.record.seconds["wait"] == 60.5


def test_a_queue_that_is_full_for_longer_than_the_budget_is_not_waited_for(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    script.refuse_compile("RESOURCE_EXHAUSTED", reason="busy", retry_after="400")
    script.refuse_compile("RESOURCE_EXHAUSTED", reason="busy", retry_after="201")
    assert where(program) == "local"
    assert (script.record.outcome, script.record.reason) == ("fallback", "busy")
    assert script.clock.waits == [400.0]


def test_a_queue_that_is_longer_than_the_budget_is_not_waited_for(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    script.refuse_compile("RESOURCE_EXHAUSTED", reason="busy", retry_after="1", wait="599")
    script.refuse_compile("RESOURCE_EXHAUSTED", reason="busy", retry_after="1", wait="601")
    assert where(program) == "local"
    assert script.record.reason == "busy"
    assert script.clock.waits == [1.0]


@pytest.mark.parametrize("priority", ["interactive", "background", "prewarm"])
def test_the_priority_is_sent(priority: str) -> None:
    script = Script(priority=priority)
    program = script.start()
    script.answer_probe()
    script.finish_compile()
    script.answer_read()
    assert where(program) == "farm"
    assert compiles.Priority.Name(script.asked.priority) == f"PRIORITY_{priority.upper()}"


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        ("draining", [1.0, 2.0]),
        ("worker_lost", [1.0, 3.0]),
        ("store_unavailable", [1.0, 3.0]),
        ("", [1.0, 2.0]),
    ],
)
def test_the_same_question_is_asked_again_after_a_break(script: Script, reason: str, waits: list[float]) -> None:
    program = script.start()
    script.answer_probe()
    script.break_off_compile(reason=reason)
    script.refuse_compile("UNAVAILABLE", reason=reason)
    script.finish_compile(outcome="OUTCOME_JOINED")
    script.answer_read()
    assert where(program) == "farm"
    assert script.clock.waits == waits
    assert script.record.outcome == "joined"


def test_a_farm_that_had_the_job_gets_half_a_minute_to_come_back(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    script.break_off_compile(reason="draining")
    for _ in range(5):
        script.refuse_compile("UNAVAILABLE")
    assert where(program) == "local"
    assert script.clock.waits == [1.0, 2.0, 4.0, 8.0, 15.0]
    # The next graph does not wait for it once more.
    assert where(script.start()) == "local"
    assert script.ledger.records()[1].seconds["wait"] == 0


def test_a_farm_that_takes_no_new_jobs_is_not_waited_for_so_long(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    for _ in range(3):
        script.refuse_compile("UNAVAILABLE", reason="draining")
    assert where(program) == "local"
    assert script.clock.waits == [1.0, 3.0]
    # No scripted answer: the farm is not asked.
    assert where(script.start()) == "local"
    assert {record.reason for record in script.ledger.records()} == {"draining"}
    assert "the next attempt is in 30 s" in script.ledger.records()[1].message


def test_a_farm_that_breaks_three_times_is_left_alone_for_a_while(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    for _ in range(3):
        script.refuse_compile("UNAVAILABLE")
    assert where(program) == "local"
    assert script.record.reason == "unreachable"
    # No scripted answer: the farm is not asked.
    assert where(script.start()) == "local"
    assert "the next attempt is in 30 s" in script.ledger.records()[1].message
    script.clock.seconds += 31
    program = script.start()
    script.answer_probe()
    script.finish_compile()
    script.answer_read()
    assert where(program) == "farm"


def test_a_farm_that_nobody_answers_for_is_asked_once(script: Script) -> None:
    program = script.start()
    script.refuse_probe("UNAVAILABLE", "Connection refused")
    assert where(program) == "local"
    assert where(script.start()) == "local"
    assert {record.reason for record in script.ledger.records()} == {"unreachable"}
    assert script.clock.waits == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("FAILURE_KIND_COMPILE_ERROR", "compile_error"),
        ("FAILURE_KIND_TIMEOUT", "timeout"),
        ("FAILURE_KIND_OUT_OF_MEMORY", "out_of_memory"),
        ("FAILURE_KIND_CRASHED", "crashed"),
        ("FAILURE_KIND_NOT_SERIALIZABLE", "not_serializable"),
        ("FAILURE_KIND_VERIFICATION", "verification"),
        ("FAILURE_KIND_DEVICE_OUT_OF_MEMORY", "device_out_of_memory"),
        ("FAILURE_KIND_OUTPUT_TOO_LARGE", "output_too_large"),
        ("FAILURE_KIND_UNEXPECTED_SOURCE", "unexpected_source"),
        ("FAILURE_KIND_OUT_OF_DISK", "out_of_disk"),
        # Of a newer farm.
        (99, "failure_kind_99"),
    ],
)
def test_a_failed_compile_is_a_result_and_compiled_locally(
    script: Script, kind: str | int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = script.start()
    script.answer_probe()
    script.fail_compile(kind, "no lowering")
    assert where(program) == "local"
    assert (script.record.outcome, script.record.reason) == ("fallback", reason)
    assert script.record.message == "torch.Bad: no lowering"
    assert not any(record.exc_info for record in caplog.records)


def test_a_graph_that_neither_compiles_runs_as_it_is(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.runtime.local_error = ZeroDivisionError("as torch raises it")
    program = script.start()
    script.answer_probe()
    script.fail_compile("FAILURE_KIND_COMPILE_ERROR", "no lowering")
    assert where(program) == "eager"
    assert (script.record.outcome, script.record.resort) == ("fallback", "eager")
    assert "runs uncompiled from now on: ZeroDivisionError: as torch raises it" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    "events",
    [
        [],
        [compiles.CompileResponse(finished=compiles.Finished(outcome=compiles.OUTCOME_HIT))],
        [compiles.CompileResponse(finished=compiles.Finished(manifest=MANIFEST))],
    ],
    ids=["no end", "no result", "no outcome"],
)
def test_a_talk_without_a_proper_end(script: Script, events: list[compiles.CompileResponse]) -> None:
    program = script.start()
    script.answer_probe()
    script.take_compile(*events).terminate((), OK, "")
    assert where(program) == "local"
    assert script.record.reason == "internal"


def test_an_artifact_for_another_torch_is_not_even_fetched(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    script.finish_compile(manifest_of(b"program", torch="2.15.0"))
    assert where(program) == "local"
    assert (script.record.reason, script.record.message) == ("incompatible_artifact", "made for torch 2.15.0")


def test_corrupt_bytes_never_reach_the_loader(script: Script) -> None:
    script.runtime.loading_error = AssertionError("loaded")
    program = script.start()
    script.answer_probe()
    script.finish_compile()
    script.answer_read(b"pr0gram")
    assert where(program) == "local"
    assert script.record.reason == "corrupt_artifact"


def test_an_artifact_whose_blob_is_gone_is_asked_for_again(script: Script) -> None:
    program = script.start()
    script.answer_probe()
    script.finish_compile()
    script.refuse_read("NOT_FOUND", reason="not_stored")
    script.finish_compile(outcome="OUTCOME_COMPILED")
    script.answer_read()
    assert where(program) == "farm"
    assert script.record.outcome == "compiled"


def test_tensors_go_when_the_farm_misses_them_and_again_if_they_are_gone(script: Script) -> None:
    digest = digest_of(b"tensor")
    program = script.start(FakeGraphModule(blobs={digest: b"tensor"}))
    script.answer_probe()
    for is_gone in (True, False):
        script.refuse_compile("FAILED_PRECONDITION", reason="missing_blobs")
        assert script.answer_find_missing([digest]) == [digest]
        assert script.take_write() == b"tensor"
        if is_gone:
            script.refuse_compile("FAILED_PRECONDITION", reason="missing_blobs")
    script.finish_compile()
    script.answer_read()
    assert where(program) == "farm"
    assert script.record.bytes_sent > 12


def test_time_that_is_spent_while_asking_again_is_not_spent_twice() -> None:
    script = Script(timeout_seconds=3.5)
    program = script.start()
    script.answer_probe()
    script.refuse_compile("UNAVAILABLE")
    script.refuse_compile("UNAVAILABLE")
    assert where(program) == "local"
    assert script.clock.waits == [1.0]
