"""A pod gives up at the end of its budget, whatever a farm does, and goes on without it.

Time is a clock's here: what would take ten seconds takes none, and not a moment more than allowed goes unseen. That
gRPC ends calls at their deadlines is shown in test_budget.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, manifest_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import BY_REASON, ESTIMATED_WAIT_KEY, REASON_KEY, RETRY_AFTER_KEY
from compilefarm.core.keys import key_of
from compilefarm.v1 import blob_service_pb2 as blobs
from compilefarm.v1 import compile_service_pb2 as compiles
from compilefarm.v1.job_pb2 import PHASE_COMPILING

from .slow_network import Refusal, Said, SlowNetwork

BUDGET_SECONDS = 10.0
MOST_SECONDS = BUDGET_SECONDS + 1.0
NEVER: Said = (float("inf"), None)
HELD = {digest_of(b"tensor"): b"tensor"}
CONTENTS = [b"program", *(b"library %d" % number for number in range(40))]

ACCEPTED = compiles.CompileResponse(accepted=compiles.Accepted(key="named"))
PROGRESS = compiles.CompileResponse(progress=compiles.Progress(phase=PHASE_COMPILING))
NOTHING_SAID = compiles.CompileResponse()
NOTHING_MISSING = blobs.FindMissingResponse()
ALL_MISSING = blobs.FindMissingResponse(digests=list(HELD))


def refusal(reason: str, *told: tuple[str, str]) -> Refusal:
    return Refusal(BY_REASON[reason].status, (REASON_KEY, reason), *told)


def busy(retry_after: str, *, estimate: str = "") -> Refusal:
    return refusal("busy", (RETRY_AFTER_KEY, retry_after), (ESTIMATED_WAIT_KEY, estimate))


def finished(request: Any) -> compiles.CompileResponse:
    manifest = manifest_of(*CONTENTS, key=key_of(request.job).text)
    return compiles.CompileResponse(finished=compiles.Finished(outcome=compiles.OUTCOME_HIT, manifest=manifest))


def found(request: Any) -> compiles.LookupResponse:
    return compiles.LookupResponse(manifest=manifest_of(*CONTENTS, key=key_of(request.job).text))


def chunk(content: bytes) -> blobs.ReadResponse:
    return blobs.ReadResponse(chunk=content)


def content_of(request: Any) -> bytes:
    content = {digest_of(content): content for content in CONTENTS}[request.digest]
    return content[request.offset_bytes :]


Answer = Callable[[Any], Iterable[Said]]


class HostileFarm:
    """A farm that is quick and right unless told otherwise.

    Args:
        answers: what it says instead, by method. The first FindMissing, by which a pod sees that there is a farm, is
            the method "Probe".
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._is_known = False

    def __call__(self, method: str, request: Any) -> Iterable[Said]:
        if method == "FindMissing" and not self._is_known:
            method, self._is_known = "Probe", True
        return self._answers[method](request) if method in self._answers else self._well(method, request)

    def _well(self, method: str, request: Any) -> Iterable[Said]:
        answers: Mapping[str, Any] = {
            "Probe": lambda: [(0.0, NOTHING_MISSING)],
            "FindMissing": lambda: [(0.0, NOTHING_MISSING)],
            "Write": lambda: [(0.0, blobs.WriteResponse())],
            "Lookup": lambda: [(0.0, found(request))],
            "Compile": lambda: [(0.0, ACCEPTED), (0.0, finished(request))],
            "Read": lambda: [(0.0, chunk(content_of(request)))],
            "Report": lambda: [(0.0, compiles.ReportResponse())],
        }
        return answers[method]()  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What became of a graph.

    Attributes:
        place: where its program comes from.
        seconds: after how many there was one.
        latest_deadline: until when the farm might have kept the pod waiting at most.
        record: of it.
    """

    place: str
    seconds: float
    latest_deadline: float
    record: GraphRecord

    def check_patience(self) -> None:
        assert self.seconds <= MOST_SECONDS
        assert self.latest_deadline <= BUDGET_SECONDS


def pod_of(network: SlowNetwork, *, clock: FakeClock, ledger: Ledger, **given: Any) -> Farm:
    # Its threads run in no time; what hangs ends by the clock.
    dependencies = Dependencies(
        runtime=FakeRuntime(), clock=clock, ledger=ledger, open_channel=lambda _: network, patience_seconds=60
    )
    return Farm("farm:1", timeout_seconds=BUDGET_SECONDS, dependencies=dependencies, **given)


def ask(farm: HostileFarm, **given: Any) -> Asked:
    clock, ledger = FakeClock(), Ledger()
    network = SlowNetwork(farm, clock=clock)
    program = pod_of(network, clock=clock, ledger=ledger, **given).backend(FakeGraphModule(blobs=HELD), [])
    (record,) = ledger.records()
    return Asked(place=program()[0], seconds=clock.seconds, latest_deadline=max(network.deadlines), record=record)


def never(_: Any) -> Iterable[Said]:
    return [NEVER]


# What each farm says instead of the right thing, and the reason that the pod has for going on without it.
FARMS: dict[str, tuple[Mapping[str, Answer], str]] = {
    "takes connections and says nothing": ({"Probe": never}, "unreachable"),
    "takes a graph and says nothing": ({"Compile": never}, "out_of_time"),
    "accepts a graph and says nothing": ({"Compile": lambda _: [(0.0, ACCEPTED), NEVER]}, "out_of_time"),
    "accepts a graph again and again": ({"Compile": lambda _: itertools.repeat((0.1, ACCEPTED))}, "out_of_time"),
    "compiles for ever": ({"Compile": lambda _: itertools.repeat((0.1, PROGRESS))}, "out_of_time"),
    "says what means nothing": ({"Compile": lambda _: itertools.repeat((0.1, NOTHING_SAID))}, "out_of_time"),
    "answers after the deadline": ({"Compile": lambda job: [(BUDGET_SECONDS + 0.001, finished(job))]}, "out_of_time"),
    "is busy for ever": ({"Compile": lambda _: [(0.0, busy("0"))]}, "busy"),
    "is busy for ever, and slow to say so": ({"Compile": lambda _: [(2.0, busy("3", estimate="nan"))]}, "busy"),
    "goes away with each graph": ({"Compile": lambda _: [(3.0, ACCEPTED), (0.0, refusal("draining"))]}, "out_of_time"),
    "misses tensors that it was sent": (
        {"Compile": lambda _: [(0.9, refusal("missing_blobs"))], "FindMissing": lambda _: [(0.9, ALL_MISSING)]},
        "out_of_time",
    ),
    "never says which tensors it misses": (
        {"Compile": lambda _: [(6.0, refusal("missing_blobs"))], "FindMissing": never},
        "out_of_time",
    ),
    "never takes a tensor": (
        {
            "Compile": lambda _: [(3.0, refusal("missing_blobs"))],
            "FindMissing": lambda _: [(3.0, ALL_MISSING)],
            "Write": never,
        },
        "out_of_time",
    ),
    "sends half an artifact": ({"Read": lambda blob: [(0.1, chunk(content_of(blob)[:3]))]}, "corrupt_artifact"),
    "sends half an artifact and falls silent": (
        {"Read": lambda blob: [(0.1, chunk(content_of(blob)[:3])), NEVER]},
        "out_of_time",
    ),
    "sends blobs in drops": (
        {"Read": lambda blob: ((9.0, chunk(bytes([byte]))) for byte in content_of(blob))},
        "out_of_time",
    ),
    "sends nothing again and again": ({"Read": lambda _: itertools.repeat((0.1, chunk(b"")))}, "out_of_time"),
    "sends blobs that have no end": ({"Read": lambda _: itertools.repeat((0.1, chunk(b"x")))}, "corrupt_artifact"),
    "sends many blobs slowly": ({"Read": lambda blob: [(0.5, chunk(content_of(blob)))]}, "out_of_time"),
    "breaks off each blob": (
        {"Read": lambda blob: [(1.5, chunk(content_of(blob)[:1])), (0.0, Refusal("UNAVAILABLE"))]},
        "out_of_time",
    ),
}


@pytest.mark.parametrize("name", FARMS)
def test_a_pod_gives_up_at_the_end_of_its_budget(name: str) -> None:
    answers, reason = FARMS[name]
    asked = ask(HostileFarm(answers), connect_timeout_seconds=60.0)
    assert (asked.place, asked.record.outcome, asked.record.reason) == ("local", "fallback", reason)
    asked.check_patience()


@pytest.mark.parametrize("on_failure", ["local", "eager"])
def test_a_farm_that_hangs_leads_to_the_next_resort(on_failure: str) -> None:
    asked = ask(HostileFarm({"Compile": never}), on_failure=on_failure)
    assert (asked.place, asked.record.resort) == (on_failure, on_failure)
    asked.check_patience()


@pytest.mark.parametrize("answers", [{"Lookup": never}, {"Read": lambda _: [(6.0, chunk(b"")), NEVER]}])
@pytest.mark.parametrize("on_miss", ["local", "eager"])
def test_a_lookup_ends_with_the_budget(on_miss: str, answers: Mapping[str, Answer]) -> None:
    asked = ask(HostileFarm(answers), on_miss=on_miss)
    assert asked.record.reason == "out_of_time"
    asked.check_patience()


def test_what_eager_waits_for_meanwhile_ends_with_a_budget_of_its_own() -> None:
    clock, ledger = FakeClock(), Ledger()
    farm = HostileFarm({"Lookup": lambda _: [(2.0, refusal("not_stored"))], "Compile": never})
    network = SlowNetwork(farm, clock=clock)
    program = pod_of(network, clock=clock, ledger=ledger, on_miss="eager").backend(FakeGraphModule(), [])
    assert program()[0] == "eager"
    for thread in threading.enumerate():
        if thread.name == "program of the farm":
            thread.join(30)
    (record,) = ledger.records()
    assert (program()[0], record.outcome, record.reason) == ("eager", "fallback", "out_of_time")
    assert clock.seconds <= 2.0 + MOST_SECONDS


class HeldLock:
    """A lock that another thread holds for a while."""

    def __init__(self, clock: FakeClock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def acquire(self, *, timeout: float) -> bool:
        self._clock.seconds += min(self._seconds, timeout)
        return self._seconds < timeout

    def release(self) -> None:
        """Nobody else waits."""


def test_waiting_for_another_thread_that_connects_is_part_of_the_budget() -> None:
    clock, ledger = FakeClock(), Ledger()
    network = SlowNetwork(HostileFarm({"Probe": never}), clock=clock)
    pod = pod_of(network, clock=clock, ledger=ledger, connect_timeout_seconds=60.0)
    pod._connection._state().lock = HeldLock(clock, seconds=8.0)  # type: ignore[assignment]  # as much of one as it uses
    assert pod.backend(FakeGraphModule(), [])()[0] == "local"
    assert max(network.deadlines) == BUDGET_SECONDS
    assert clock.seconds <= MOST_SECONDS


SECONDS = st.sampled_from([0.0, 0.2, 1.0, 4.0, BUDGET_SECONDS, float("inf")])
STATUSES = st.sampled_from([status.name for status in grpc.StatusCode if status is not grpc.StatusCode.OK])
REFUSALS = st.one_of(
    st.builds(refusal, st.sampled_from(sorted(BY_REASON))),
    st.builds(Refusal, STATUSES),
    st.builds(busy, st.sampled_from(["0", "3", "1e9", "nan", "soon"])),
)
ANSWERS: Mapping[str, Callable[[Any], st.SearchStrategy[Any]]] = {
    "Probe": lambda _: st.just(NOTHING_MISSING),
    "FindMissing": lambda _: st.sampled_from([NOTHING_MISSING, ALL_MISSING]),
    "Write": lambda _: st.just(blobs.WriteResponse()),
    "Lookup": lambda job: st.just(found(job)),
    "Compile": lambda job: st.sampled_from([ACCEPTED, PROGRESS, NOTHING_SAID, finished(job)]),
    "Read": lambda blob: st.sampled_from([chunk(content_of(blob)), chunk(content_of(blob)[:3]), chunk(b"")]),
}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), on_miss=st.sampled_from(["wait", "local"]))
def test_no_farm_keeps_a_pod_waiting(data: st.DataObject, on_miss: str) -> None:
    def answer(method: str) -> Answer:
        def say(request: Any) -> Iterable[Said]:
            said = st.tuples(SECONDS, st.one_of(ANSWERS[method](request), REFUSALS))
            yield from data.draw(st.lists(said, max_size=4))
            if method not in ("Compile", "Read"):
                # A call for one answer has one.
                yield NEVER

        return say

    asked = ask(HostileFarm({method: answer(method) for method in ANSWERS}), on_miss=on_miss)
    assert asked.place in ("local", "farm")
    asked.check_patience()
