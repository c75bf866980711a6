"""What became of each graph, for `compilefarm.client.stats()`."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal

from compilefarm.client.clock import Clock
from compilefarm.client.findings import Finding

Outcome = Literal["hit", "compiled", "joined", "bypass", "fallback", "local", "eager"]
# What may become of a graph, each with a sentence for people.
OUTCOMES: Mapping[Outcome, str] = {
    "hit": "The farm had the artifact stored.",
    "compiled": "The farm compiled the graph for this process.",
    "joined": "The farm was compiling the graph already, and this process got the result, too.",
    "bypass": "The farm was not asked, since the graph cannot be sent faithfully.",
    "fallback": "The farm was asked, and gave no program that could be used.",
    "local": 'Nothing was stored, and on_miss="local" compiles the graph in this process.',
    "eager": 'Nothing was stored, or the farm has not answered yet, and on_miss="eager" runs the graph uncompiled '
    "until the farm's program is there.",
}
Resort = Literal["local", "eager"]
Step = Literal["encode", "wait", "fetch", "load", "local", "first_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecord:
    """One graph.

    Attributes:
        number: position among the graphs of this process, from 0.
        name: what `torch.compile(name=...)` calls it; empty if nothing.
        nodes: nodes of the graph.
        outcome: one of OUTCOMES, or None while the graph is under way or after an error was raised.
        key: the key; empty if the farm did not name one.
        reason: why it was not the farm, as a word for machines; empty if it was.
        message: the same for people.
        resort: what it is instead of a program of the farm: "local" (compiled here) or "eager" (uncompiled); None while
            there is one of the farm.
        obstacle: why it is not compiled here, for people; empty if it is, or is not to be.
        unrecorded: why a program of the farm runs without the CUDA graphs that were asked for, for people; empty if it
            does not. What torch itself leaves out is in its own log and counters.
        self_check: what a comparison with the uncompiled graph found; None if there was none.
        seconds: by step, those that took place. "wait" begins with the connection to the farm and ends with its
            answer, "local" is a compile here, "first_call" the first call of a loaded artifact.
        bytes_sent: job and tensors.
        bytes_fetched: blobs of the artifact.
        compile_seconds: what the worker took to compile and tune the artifact that was loaded; zero without one.
        dynamo: with packages in use, "reused" if its function was not traced, or "traced: " and why; else empty.
        request_id: what the log of the farm calls the request.
    """

    number: int
    name: str
    nodes: int
    outcome: Outcome | None = None
    key: str = ""
    reason: str = ""
    message: str = ""
    resort: Resort | None = None
    obstacle: str = ""
    unrecorded: str = ""
    self_check: Finding | None = None
    seconds: Mapping[Step, float] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_fetched: int = 0
    compile_seconds: float = 0.0
    dynamo: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All graphs together.

    Attributes:
        graphs: number of graphs by outcome; those without one are not counted.
        uncompiled: those that run as they are.
        unrecorded: those that run without the CUDA graphs that were asked for.
        seconds: by step.
        bytes_sent: to the farm.
        bytes_fetched: from the farm.
    """

    graphs: Mapping[Outcome, int]
    uncompiled: int
    unrecorded: int
    seconds: Mapping[Step, float]
    bytes_sent: int
    bytes_fetched: int


_dynamo: ContextVar[str] = ContextVar("dynamo", default="")
# A process that recompiles for ever does not grow for ever. One takes about a kilobyte.
_MOST_RECORDS = 10_000


class Ledger:
    """The records of the last graphs of a process, at most 10,000.

    Threads share it: each record is replaced as a whole, by one thread at a time.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._records: dict[int, GraphRecord] = {}

    def open(self, *, name: str, nodes: int, clock: Clock) -> RecordWriter:
        """Begins the record of a graph, and returns what writes it."""
        request_id = secrets.token_hex(8)
        dynamo = _dynamo.get()
        record = GraphRecord(number=next(self._numbers), name=name, nodes=nodes, dynamo=dynamo, request_id=request_id)
        return RecordWriter(record, ledger=self, clock=clock)

    @contextmanager
    def noting(self, dynamo: str) -> Iterator[None]:
        """Has records that are opened inside say what became of tracing."""
        token = _dynamo.set(dynamo)
        try:
            yield
        finally:
            _dynamo.reset(token)

    def put(self, record: GraphRecord) -> None:
        """Keeps a record in place of the one with the same number."""
        self._records[record.number] = record
        if len(self._records) > _MOST_RECORDS:
            self._records.pop(record.number - _MOST_RECORDS, None)

    def drop(self, number: int) -> None:
        """Forgets a record."""
        self._records.pop(number, None)

    def records(self) -> list[GraphRecord]:
        """All records, in the order in which the graphs came."""
        return sorted(self._records.copy().values(), key=lambda record: record.number)


class RecordWriter:
    """Writes the record of one graph. Threads may share it."""

    def __init__(self, record: GraphRecord, *, ledger: Ledger, clock: Clock) -> None:
        self.record = record
        # Two threads write where one asks the farm and the other serves meanwhile.
        self._lock = threading.Lock()
        self._ledger = ledger
        self._clock = clock
        ledger.put(record)

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """Adds the seconds that pass inside to a step."""
        started = self._clock.now()
        try:
            yield
        finally:
            self._change(lambda record: _with_seconds(record, step, self._clock.now() - started))

    def note_key(self, key: str) -> None:
        """Notes the key."""
        self._change(lambda record: replace(record, key=key))

    def add_bytes(self, *, sent: int = 0, fetched: int = 0) -> None:
        """Adds bytes that were sent to the farm, or fetched from it."""
        self._change(
            lambda record: replace(
                record, bytes_sent=record.bytes_sent + sent, bytes_fetched=record.bytes_fetched + fetched
            )
        )

    def note_compile_seconds(self, compile_seconds: float) -> None:
        """Notes how many seconds the worker took."""
        self._change(lambda record: replace(record, compile_seconds=compile_seconds))

    def close(self, outcome: Outcome | None, *, reason: str = "", message: str = "") -> None:
        """Notes what became of the graph."""
        self._change(lambda record: replace(record, outcome=outcome, reason=reason, message=message))

    def resort_to(self, resort: Resort | None, *, obstacle: str = "") -> None:
        """Notes what the graph runs as without a program of the farm; None: there is one."""
        self._change(lambda record: replace(record, resort=resort, obstacle=" ".join(obstacle.split())))

    def discard(self) -> None:
        """Forgets the graph: Dynamo traces the function again, and hands over another one."""
        with self._lock:
            self._ledger.drop(self.record.number)

    def note_unrecorded(self, why: str) -> None:
        """Notes why the program runs without CUDA graphs."""
        self._change(lambda record: replace(record, unrecorded=" ".join(why.split())))

    def note_self_check(self, finding: Finding) -> None:
        """Notes what a comparison with the uncompiled graph found."""
        self._change(lambda record: replace(record, self_check=finding))

    def _change(self, change: Callable[[GraphRecord], GraphRecord]) -> None:
        with self._lock:
            self.record = change(self.record)
            self._ledger.put(self.record)


def _with_seconds(record: GraphRecord, step: Step, spent: float) -> GraphRecord:
    return replace(record, seconds={**record.seconds, step: record.seconds.get(step, 0.0) + spent})


def summarize(records: Iterable[GraphRecord]) -> Summary:
    """Returns the sums over records."""
    records = list(records)
    seconds: Counter[Step] = Counter()
    for record in records:
        for step, spent in record.seconds.items():
            seconds[step] += spent  # type: ignore[assignment]  # Counter adds floats as well
    return Summary(
        graphs=dict(Counter(record.outcome for record in records if record.outcome is not None)),
        uncompiled=sum(record.resort == "eager" for record in records),
        unrecorded=sum(bool(record.unrecorded) for record in records),
        seconds=dict(seconds),
        bytes_sent=sum(record.bytes_sent for record in records),
        bytes_fetched=sum(record.bytes_fetched for record in records),
    )


PROCESS_LEDGER = Ledger()


def stats() -> list[GraphRecord]:
    """What became of each graph that this process handed to a farm, as they came; the last 10,000."""
    return PROCESS_LEDGER.records()
