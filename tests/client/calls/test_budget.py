"""A pod waits no longer for one graph than it was told to, whatever the farm does meanwhile."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.testing import FakeGraphModule, FakeRuntime, FarmServicer, serving
from compilefarm.core.digests import digest_of
from compilefarm.core.keys import key_of
from compilefarm.v1.compile_service_pb2 import CompileResponse, Progress
from compilefarm.v1.job_pb2 import PHASE_COMPILING

BUDGET_SECONDS = 0.5
# A machine on which other tests run takes its time; what is tried here would last for ever, or several times as long.
MOST_SECONDS = BUDGET_SECONDS + 2.5
HELD = {digest_of(b"tensor"): b"tensor"}


class EndlessFarm(FarmServicer):
    """A farm one of whose calls has no end.

    Attributes:
        never_ends: whether its workers never do, and say so all the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.never_ends = False

    def drip(self, content: bytes, offset_bytes: int) -> Iterator[bytes]:
        """One byte after another, each soon enough for a farm that lives."""
        for position in range(offset_bytes, len(content)):
            if self.over.wait(0.05):
                return
            yield content[position : position + 1]

    def hold_lookup(self, method: str) -> None:
        if method == "Lookup":
            self.hold()

    def Compile(self, request: Any, context: Any) -> Iterator[CompileResponse]:
        while self.never_ends and not self.over.wait(0.05):
            yield CompileResponse(progress=Progress(phase=PHASE_COMPILING))
        yield from super().Compile(request, context)


@pytest.fixture
def farm() -> EndlessFarm:
    return EndlessFarm()


@pytest.fixture
def address(farm: EndlessFarm) -> Iterator[str]:
    with serving(farm) as address:
        yield address


def ask(address: str, *, pods: int = 1, **settings: Any) -> list[GraphRecord]:
    """Asks with several threads at once; the pod is served by itself in time."""
    ledger = Ledger()
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=ledger)
    with closing(Farm(address, timeout_seconds=BUDGET_SECONDS, dependencies=dependencies, **settings)) as farm:
        started = time.monotonic()
        with ThreadPoolExecutor(pods) as pool:
            modules = [FakeGraphModule(f"graph {number}", blobs=HELD) for number in range(pods)]
            places = list(pool.map(lambda module: farm.backend(module, [])()[0], modules))
        seconds = time.monotonic() - started
    assert places == ["local"] * pods
    assert seconds < MOST_SECONDS
    return ledger.records()


def test_an_address_that_takes_connections_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        records = ask(f"127.0.0.1:{listener.getsockname()[1]}", pods=8, connect_timeout_seconds=30)
    assert {record.outcome for record in records} == {"fallback"}
    assert {record.reason for record in records} <= {"unreachable", "out_of_time"}


@pytest.mark.parametrize("call", ["FindMissing", "Write"])
def test_a_call_that_has_no_answer(call: str, farm: EndlessFarm, address: str) -> None:
    questions = itertools.count()

    def before_answer(method: str) -> None:
        # The first question is the one by which a client sees that there is a farm.
        if method == call and not (method == "FindMissing" and next(questions) == 0):
            farm.hold()

    farm.before_answer = before_answer
    farm.before_compile = lambda: farm.require_blobs(HELD)
    assert [record.reason for record in ask(address)] == ["out_of_time"]


def test_a_lookup_that_has_no_answer(farm: EndlessFarm, address: str) -> None:
    farm.before_answer = farm.hold_lookup
    assert [record.reason for record in ask(address, on_miss="local")] == ["out_of_time"]


def take_over() -> None:
    for thread in threading.enumerate():
        if thread.name == "program of the farm":
            thread.join(60)


@pytest.mark.parametrize(("is_stored", "outcome"), [(True, "hit"), (False, "compiled")])
def test_a_pod_that_would_rather_serve_does_not_wait_for_a_lookup(
    farm: EndlessFarm, address: str, is_stored: bool, outcome: str
) -> None:
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=Ledger(), patience_seconds=0.05)
    with closing(Farm(address, on_miss="eager", dependencies=dependencies)) as pod:
        if is_stored:
            farm.keys.add(key_of(dependencies.runtime.encode(FakeGraphModule(), [], options={}).job).text)
        farm.before_answer = farm.hold_lookup
        program = pod.backend(FakeGraphModule(), [])
        assert program()[0] == "eager"
        (record,) = dependencies.ledger.records()
        assert (record.outcome, record.resort, record.reason) == ("eager", "eager", "no_answer_yet")
        farm.over.set()
        take_over()
        assert program()[0] == "farm"
        (record,) = dependencies.ledger.records()
        assert (record.outcome, record.resort, record.reason) == (outcome, None, "")


def test_a_pod_that_would_rather_serve_does_not_wait_for_a_connection() -> None:
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=Ledger(), patience_seconds=0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with closing(Farm(address, on_miss="eager", connect_timeout_seconds=2.0, dependencies=dependencies)) as pod:
            program = pod.backend(FakeGraphModule(), [])
            assert program()[0] == "eager"
            (record,) = dependencies.ledger.records()
            assert record.reason == "no_answer_yet"
            take_over()
    assert program()[0] == "eager"
    (record,) = dependencies.ledger.records()
    assert (record.outcome, record.resort, record.reason) == ("fallback", "eager", "unreachable")


def test_a_worker_that_never_ends(farm: EndlessFarm, address: str) -> None:
    farm.never_ends = True
    assert [record.reason for record in ask(address)] == ["out_of_time"]


def test_an_artifact_that_comes_in_drops(farm: EndlessFarm, address: str) -> None:
    farm.contents = [b"x" * 1000]
    farm.on_read = farm.drip
    assert [record.reason for record in ask(address)] == ["out_of_time"]


def test_calls_are_watched_by_one_thread(farm: EndlessFarm, address: str) -> None:
    together = threading.Barrier(9, timeout=30)
    farm.before_compile = lambda: together.wait() and None
    dependencies = Dependencies(runtime=FakeRuntime(), ledger=Ledger())
    with closing(Farm(address, dependencies=dependencies)) as pod, ThreadPoolExecutor(8) as pool:
        places = [pool.submit(lambda n=n: pod.backend(FakeGraphModule(f"{n}"), [])()[0]) for n in range(8)]  # type: ignore[misc]
        while together.n_waiting < 8:
            time.sleep(0)
        watchers = [thread for thread in threading.enumerate() if thread.name == "silence of the farm"]
        together.wait()
        assert [place.result() for place in places] == ["farm"] * 8
    assert len(watchers) == 1
