"""A Farm over a real connection: what to do about a miss, many threads, Ctrl-C, and never harming the pod."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compilefarm.client.clock import SystemClock
from compilefarm.client.composition import compose
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.findings import Finding
from compilefarm.client.graph_compiler import GraphCompiler
from compilefarm.client.records import GraphRecord, Ledger, summarize
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, FarmServicer, serving
from compilefarm.core.errors import CorruptArtifact, NoMatchingWorker, NotStored, Unreachable
from compilefarm.core.keys import key_of
from compilefarm.core.requests import Request, pack_request
from compilefarm.graph.bypass import Bypass

WAITING = Path(__file__).with_name("waiting.py")


class Pod:
    """A Farm and what it stands on."""

    def __init__(self, address: str, *, clock: FakeClock | None = None, **settings: Any) -> None:
        self.runtime = FakeRuntime()
        self.ledger = Ledger()
        self.clock = clock or FakeClock()
        dependencies = Dependencies(
            runtime=self.runtime, clock=clock or SystemClock(), ledger=self.ledger, patience_seconds=60
        )
        self.farm = Farm(address, dependencies=dependencies, **settings)

    def where(self, name: str = "graph") -> str:
        place: str = self.farm.backend(FakeGraphModule(name), [])()[0]
        return place

    @property
    def last(self) -> GraphRecord:
        return self.ledger.records()[-1]


def key(name: str = "graph") -> str:
    return key_of(FakeRuntime().encode(FakeGraphModule(name), [], options={}).job).text


def test_wait_has_the_farm_compile_once(address: str, servicer: FarmServicer) -> None:
    pod = Pod(address)
    assert [pod.where(), pod.where()] == ["farm", "farm"]
    assert [record.outcome for record in pod.ledger.records()] == ["compiled", "hit"]
    assert servicer.compiles == [key()]
    assert set(pod.last.seconds) == {"encode", "wait", "fetch", "load", "first_call"}
    pod.farm.close()


def test_equal_graphs_of_a_process_share_a_program(address: str, servicer: FarmServicer) -> None:
    pod = Pod(address)
    first, second = (pod.farm.backend(FakeGraphModule(), []) for _ in range(2))
    other = pod.farm.backend(FakeGraphModule("other"), [])
    assert [program("x")[0] for program in (first, second, other)] == ["farm"] * 3
    assert [record.outcome for record in pod.ledger.records()] == ["compiled", "hit", "compiled"]
    assert servicer.compiles == [key(), key("other")]
    asked, shared, _ = pod.ledger.records()
    assert (shared.key, shared.bytes_fetched) == (asked.key, 0)
    assert set(shared.seconds) == {"encode", "first_call"}
    pod.farm.close()


def test_no_program_is_kept_that_nobody_uses(address: str) -> None:
    pod = Pod(address)
    first = pod.farm.backend(FakeGraphModule(), [])
    first()
    del first
    pod.where()
    assert "fetch" in pod.last.seconds
    pod.farm.close()


def test_programs_that_are_recorded_are_not_shared(address: str) -> None:
    pod = Pod(address)
    pod.runtime.recording = {"triton.cudagraphs": True}
    programs = [pod.farm.backend(FakeGraphModule(), []) for _ in range(2)]
    assert [program()[0] for program in programs] == ["farm"] * 2
    assert "load" in pod.last.seconds
    pod.farm.close()


def test_equal_graphs_that_communicate_in_other_groups_have_programs_of_their_own(address: str) -> None:
    pod = Pod(address)
    programs = []
    for group in ("rows", "columns", "rows"):
        pod.runtime.process_groups = [group]
        programs.append(pod.farm.backend(FakeGraphModule(), []))
    assert [program()[0] for program in programs] == ["farm"] * 3
    assert ["load" in record.seconds for record in pod.ledger.records()] == [True, True, False]
    pod.farm.close()


def test_a_program_that_was_found_wrong_is_not_shared(address: str) -> None:
    pod = Pod(address, self_check=1.0)
    pod.runtime.finding = Finding(outcome="differs", detail="it is another one")
    first = pod.farm.backend(FakeGraphModule(), [])
    assert first("x")[0] == "local"
    pod.runtime.finding = Finding(outcome="same")
    assert pod.where() == "farm"
    assert "fetch" in pod.last.seconds
    pod.farm.close()


def test_a_program_that_was_found_wrong_is_used_by_no_graph_any_more(address: str) -> None:
    pod = Pod(address, self_check=1.0)
    first, second = (pod.farm.backend(FakeGraphModule(), []) for _ in range(2))
    assert second("x")[0] == "farm"
    pod.runtime.finding = Finding(outcome="differs", detail="it is another one")
    assert [program("x")[0] for program in (first, second)] == ["local", "local"]
    pod.farm.close()


def request_of_another_machine(name: str = "graph") -> Request:
    job = FakeRuntime().encode(FakeGraphModule(name), [], options={}).job
    job.environment.torch = "1.0"
    return Request(job=job)


def test_a_request_of_another_machine_is_asked_for_this_one(address: str, servicer: FarmServicer) -> None:
    servicer.keys.add(key())
    pod = Pod(address, on_miss="error")
    assert pod.farm.compile_request(request_of_another_machine())("x")[0] == "farm"
    assert (pod.last.outcome, pod.last.key) == ("hit", key())
    pod.farm.close()


@contextmanager
def compiling(address: str, ledger: Ledger) -> Iterator[GraphCompiler]:
    config, clock = ClientConfig(address=address), SystemClock()
    connection = Connection(config, clock=clock)
    dependencies = Dependencies(runtime=FakeRuntime(), clock=clock, ledger=ledger)
    yield compose(config, dependencies=dependencies, connection=connection, on_progress=lambda *_: None)
    connection.close()


def test_artifacts_are_fetched_at_once_and_before_their_programs_are_asked_for(
    address: str, servicer: FarmServicer
) -> None:
    names, ledger, are_read = ("graph", "other"), Ledger(), threading.Barrier(3)
    servicer.keys.update(map(key, names))

    def read(content: bytes, _: int) -> Iterator[bytes]:
        are_read.wait(30)
        yield content

    servicer.on_read = read
    with compiling(address, ledger) as compiler:
        begun = [compiler.begin_request(request_of_another_machine(name)) for name in names]
        are_read.wait(30)
        servicer.keys.clear()
        assert [program()("x")[0] for program in begun] == ["farm", "farm"]
    records = ledger.records()
    assert [(record.outcome, record.key, record.bytes_fetched) for record in records] == [
        ("hit", key(name), len(b"program")) for name in names
    ]
    assert servicer.compiles == []


def test_an_artifact_that_is_not_stored_is_compiled_once_its_program_is_asked_for(
    address: str, servicer: FarmServicer
) -> None:
    ledger = Ledger()
    with compiling(address, ledger) as compiler:
        begun = compiler.begin_request(request_of_another_machine())
        assert (servicer.compiles, ledger.records()) == ([], [])
        assert begun()("x")[0] == "farm"
    assert [record.outcome for record in ledger.records()] == ["compiled"]


def test_a_request_that_no_farm_answers_is_compiled_here_for_this_machine() -> None:
    pod = Pod("no-such-host.invalid:1")
    place, job, _ = pod.farm.compile_request(request_of_another_machine())()
    assert (place, job.environment.torch) == ("local", FakeRuntime().environment.torch)
    assert (pod.last.outcome, pod.last.reason) == ("fallback", "unreachable")
    assert pod.runtime.local_compiles == 1


def test_a_request_that_means_nothing_without_its_process_is_refused(address: str, servicer: FarmServicer) -> None:
    pod = Pod(address)
    pod.runtime.encoding_error = Bypass("dynamic_shapes", "sizes differ")
    with pytest.raises(Bypass, match="sizes differ"):
        pod.farm.compile_request(request_of_another_machine())
    assert servicer.compiles == []
    pod.farm.close()


def test_a_saved_function_comes_from_the_farm_that_loads_it(address: str, servicer: FarmServicer) -> None:
    servicer.keys.add(key())
    pod = Pod(address, on_miss="error")
    saved = io.BytesIO(pack_request(request_of_another_machine()))
    assert pod.farm.load_compiled_function(saved)()[0] == "farm"
    pod.farm.close()


def test_local_takes_what_is_there_and_compiles_the_rest_here(
    address: str, servicer: FarmServicer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    servicer.keys.add(key("stored"))
    pod = Pod(address, on_miss="local")
    assert [pod.where("stored"), pod.where("new")] == ["farm", "local"]
    assert [record.outcome for record in pod.ledger.records()] == ["hit", "local"]
    assert pod.last.key == key("new")
    assert servicer.compiles == []
    assert "local" in pod.last.seconds
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.INFO]
    pod.farm.close()


def test_eager_serves_at_once_and_takes_the_program_when_it_is_there(address: str, servicer: FarmServicer) -> None:
    servicer.keys.add(key("stored"))
    pod = Pod(address, on_miss="eager")
    assert pod.where("stored") == "farm"
    servicer.before_compile = servicer.hold
    program = pod.farm.backend(FakeGraphModule("new"), [])
    assert servicer.held.wait(30)
    assert program()[0] == "eager"
    assert (pod.last.outcome, pod.last.resort, pod.last.reason) == ("eager", "eager", "not_stored")
    servicer.over.set()
    _join("program of the farm")
    assert program()[0] == "farm"
    assert (pod.last.outcome, pod.last.resort) == ("compiled", None)
    assert servicer.compiles == [key("new")]
    pod.farm.close()


def test_eager_goes_on_where_the_farm_fails(address: str, servicer: FarmServicer) -> None:
    def refuse() -> None:
        raise NoMatchingWorker("no worker has this torch")

    servicer.before_compile = refuse
    pod = Pod(address, on_miss="eager")
    program = pod.farm.backend(FakeGraphModule(), [])
    _join("program of the farm")
    assert program()[0] == "eager"
    assert (pod.last.outcome, pod.last.resort, pod.last.reason) == ("fallback", "eager", "no_matching_worker")
    assert pod.runtime.local_compiles == 0
    pod.farm.close()


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(30)


def test_error_raises_for_whatever_the_farm_cannot_give(address: str, servicer: FarmServicer) -> None:
    servicer.keys.add(key("stored"))
    pod = Pod(address, on_miss="error")
    assert pod.where("stored") == "farm"
    with pytest.raises(NotStored, match=f"nothing is stored under {key('new')}: prewarm"):
        pod.where("new")
    pod.runtime.encoding_error = Bypass("dynamic_shapes", "size s0")
    with pytest.raises(Bypass, match="s0"):
        pod.where("bypassed")
    pod.runtime.encoding_error = KeyError("defect")
    with pytest.raises(KeyError):
        pod.where("defect")
    pod.farm.close()
    assert pod.runtime.local_compiles == 0
    assert [record.reason for record in pod.ledger.records()] == ["", "not_stored", "dynamic_shapes", "defect"]
    assert {record.outcome for record in pod.ledger.records()[1:]} == {None}


def test_error_raises_when_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        pod = Pod(taken, on_miss="error", connect_timeout_seconds=0.2)
        with pytest.raises(Unreachable, match="nobody answers"):
            pod.where()
    assert pod.runtime.local_compiles == 0


def test_a_bypass_asks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    pod = Pod("no-such-host.invalid:1")
    pod.runtime.encoding_error = Bypass("dynamic_shapes", "size s0")
    assert pod.where() == "local"
    assert (pod.last.outcome, pod.last.reason) == ("bypass", "dynamic_shapes")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


class RestartAnalysis(Exception):
    """As torch's, by which a backend has Dynamo trace again (torch/_dynamo/exc.py)."""


def test_a_graph_that_dynamo_traces_again_counts_once(address: str) -> None:
    pod = Pod(address)
    pod.runtime.encoding_error = RestartAnalysis()
    with pytest.raises(RestartAnalysis):
        pod.where()
    pod.runtime.encoding_error = None
    assert pod.where() == "farm"
    assert [record.outcome for record in pod.ledger.records()] == ["compiled"]
    pod.farm.close()


@pytest.mark.parametrize("error", [CorruptArtifact("no program"), RuntimeError("torn")])
def test_an_artifact_that_does_not_load_is_compiled_here(
    address: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    pod = Pod(address)
    pod.runtime.loading_error = error
    assert pod.where() == "local"
    assert pod.last.outcome == "fallback"
    assert str(error) in pod.last.message
    assert len(caplog.records) == 1
    pod.farm.close()


def test_a_program_that_cannot_be_recorded_is_noted_in_one_line(address: str, caplog: pytest.LogCaptureFixture) -> None:
    pod = Pod(address)
    program = pod.farm.backend(FakeGraphModule(), [])
    assert pod.runtime.on_unrecorded is not None
    pod.runtime.on_unrecorded(RuntimeError("operation not permitted\nwhen stream is capturing"))
    why = "RuntimeError: operation not permitted when stream is capturing"
    assert (pod.last.unrecorded, summarize(pod.ledger.records()).unrecorded) == (why, 1)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert lines == [f"compilefarm: graph 0 (2 nodes) runs without CUDA graphs from now on: {why}"]
    assert program(1)[0] == "farm"
    pod.farm.close()


def test_the_first_call_is_timed_and_later_ones_are_passed_on(address: str) -> None:
    pod = Pod(address)
    program = pod.farm.backend(FakeGraphModule(), [])
    assert "first_call" not in pod.last.seconds
    assert [program(1), program(2)] == [("farm", b"program", (1,)), ("farm", b"program", (2,))]
    first = pod.last.seconds["first_call"]
    program(3)
    assert pod.last.seconds["first_call"] == first
    pod.farm.close()


def test_twenty_threads(address: str, servicer: FarmServicer) -> None:
    together = threading.Barrier(20, timeout=60)
    servicer.before_compile = lambda: together.wait() and None
    pod = Pod(address)
    with ThreadPoolExecutor(20) as pool:
        places = list(pool.map(lambda _: pod.where(), range(20)))
    pod.farm.close()
    assert places == ["farm"] * 20
    assert servicer.questions == 1
    assert sorted(str(record.outcome) for record in pod.ledger.records()) == ["compiled"] + ["hit"] * 19


def test_a_farm_that_was_closed_connects_again(address: str) -> None:
    pod = Pod(address)
    assert pod.where("one") == "farm"
    pod.farm.close()
    assert pod.where("two") == "farm"
    pod.farm.close()


@contextmanager
def interrupted(servicer: FarmServicer) -> Iterator[tuple[Future[str], Pod, str, threading.Event]]:
    """A graph that was being compiled when the farm stopped, its pod, where the farm was, and what ends its wait."""
    servicer.before_compile = servicer.hold
    restarted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            with serving(servicer) as address:
                pod = Pod(address, clock=FakeClock())
                pod.clock.on_wait = restarted.wait
                place = pool.submit(pod.where)
                assert servicer.held.wait(60)
            servicer.before_compile = lambda: None
            yield place, pod, address, restarted
        finally:
            restarted.set()


def test_a_farm_that_restarts_is_asked_again(servicer: FarmServicer) -> None:
    with interrupted(servicer) as (place, pod, address, restarted), serving(servicer, address=address):
        restarted.set()
        assert place.result() == "farm"
        pod.farm.close()
    assert pod.clock.waits == [1.0]
    assert pod.last.outcome == "compiled"


def test_a_farm_that_stays_away_is_given_up(servicer: FarmServicer) -> None:
    with interrupted(servicer) as (place, pod, _, restarted):
        restarted.set()
        assert place.result() == "local"
    assert pod.clock.waits == [1.0, 3.0]
    assert (pod.last.outcome, pod.last.reason) == ("fallback", "unreachable")


def test_the_farms_silence_is_bounded_by_the_budget(address: str, servicer: FarmServicer) -> None:
    servicer.before_compile = servicer.hold
    pod = Pod(address, timeout_seconds=0.5)
    assert pod.where() == "local"
    assert pod.last.reason == "out_of_time"
    assert "raise timeout_seconds" in pod.last.message
    pod.farm.close()


def test_a_farm_that_does_not_even_take_a_graph_in_its_time_costs_one_budget(
    address: str, servicer: FarmServicer
) -> None:
    asked = []
    servicer.before_compile = lambda: asked.append(True) or servicer.hold()
    pod = Pod(address, timeout_seconds=0.5)
    assert [pod.where() for _ in range(5)] == ["local"] * 5
    assert len(asked) == 1
    assert [record.reason for record in pod.ledger.records()] == ["out_of_time"] + ["silent"] * 4
    pod.farm.close()


def test_a_farm_that_hangs_is_left_alone_for_a_while(
    address: str, servicer: FarmServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilefarm.client.silence.LONGEST_SILENCE_SECONDS", 0.3)
    servicer.after_progress = servicer.hold
    pod = Pod(address)
    assert [pod.where() for _ in range(5)] == ["local"] * 5
    assert {record.reason for record in pod.ledger.records()} == {"silent"}
    assert "the farm has said nothing for 0.3 s" in pod.ledger.records()[0].message
    assert servicer.questions == 1
    pod.farm.close()


def test_ctrl_c_ends_the_wait_for_a_compile(address: str, servicer: FarmServicer) -> None:
    servicer.before_compile = servicer.hold
    with _waiting(address) as waiting:
        assert servicer.held.wait(60)
        _check_ends_on_ctrl_c(waiting)


def test_ctrl_c_ends_the_wait_for_an_answer_to_the_first_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with _waiting(address) as waiting:
            connection, _ = listener.accept()
            with connection:
                _check_ends_on_ctrl_c(waiting)


@contextlib.contextmanager
def _waiting(address: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, WAITING, address], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _check_ends_on_ctrl_c(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


def test_a_model_that_is_copied_keeps_its_farm() -> None:
    farm = Farm("127.0.0.1:1")
    assert copy.deepcopy({"backend": farm.backend})["backend"] == farm.backend
