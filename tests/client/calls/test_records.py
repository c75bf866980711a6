"""What stats() tells, and the line that a user sees."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import pytest

import compilefarm.client
from compilefarm.client.announcements import announce
from compilefarm.client.records import GraphRecord, Ledger, summarize
from compilefarm.client.testing import FakeClock


def test_seconds_add_up_by_step() -> None:
    clock = FakeClock()
    writer = Ledger().open(name="", nodes=3, clock=clock)
    for _ in range(2):
        with writer.step("wait"):
            clock.wait(1.5)
    clock.on_wait = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError), writer.step("fetch"):
        clock.wait(0.25)
    assert writer.record.seconds == {"wait": 3.0, "fetch": 0.25}


def test_records_are_frozen_and_do_not_change_under_the_reader() -> None:
    ledger = Ledger()
    writer = ledger.open(name="block", nodes=3, clock=FakeClock())
    (before,) = ledger.records()
    writer.close("hit")
    assert (before.outcome, ledger.records()[0].outcome) == (None, "hit")
    with pytest.raises(FrozenInstanceError):
        before.outcome = "hit"


def test_threads_lose_no_record() -> None:
    ledger = Ledger()

    def work(_: int) -> None:
        writer = ledger.open(name="", nodes=1, clock=FakeClock())
        writer.add_bytes(sent=1, fetched=2)
        writer.close("hit")
        ledger.records()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(2000)))
    assert [record.number for record in ledger.records()] == list(range(2000))
    summary = summarize(ledger.records())
    assert (summary.graphs, summary.bytes_sent, summary.bytes_fetched) == ({"hit": 2000}, 2000, 4000)


def test_summary() -> None:
    summary = summarize(
        [
            GraphRecord(number=0, name="", nodes=1, outcome="hit", seconds={"wait": 1.0, "load": 2.0}),
            GraphRecord(number=1, name="", nodes=1, outcome="fallback", seconds={"wait": 0.5}),
            GraphRecord(number=2, name="", nodes=1, outcome=None, reason="not_allowed"),
        ]
    )
    assert summary.graphs == {"hit": 1, "fallback": 1}
    assert summary.seconds == {"wait": 1.5, "load": 2.0}


def test_stats_is_a_list_of_this_process() -> None:
    assert isinstance(compilefarm.client.stats(), list)


@pytest.mark.parametrize(
    ("record", "level", "line"),
    [
        (
            GraphRecord(
                number=3,
                name="block",
                nodes=412,
                outcome="hit",
                key="abc-def",
                seconds={"wait": 0.5, "load": 0.25},
                bytes_fetched=1_230_000,
            ),
            logging.INFO,
            "compilefarm: graph 3 block (412 nodes) hit: wait 0.50 s, load 0.25 s; 1.23 MB fetched, key abc-def",
        ),
        (
            GraphRecord(
                number=0, name="", nodes=2, outcome="fallback", reason="busy", message="queue\nfull", request_id="ab12"
            ),
            logging.WARNING,
            "compilefarm: graph 0 (2 nodes) is compiled locally, no artifact from the farm [busy]: queue full "
            "(request ab12)",
        ),
        (
            GraphRecord(number=0, name="", nodes=2, outcome="bypass", reason="dynamic_shapes", message="s0"),
            logging.WARNING,
            "compilefarm: graph 0 (2 nodes) is compiled locally, not sent to the farm [dynamic_shapes]: s0",
        ),
        (
            GraphRecord(number=0, name="", nodes=2, outcome="local", reason="not_stored", message="nothing under k"),
            logging.INFO,
            "compilefarm: graph 0 (2 nodes) is compiled locally, not stored [not_stored]: nothing under k",
        ),
    ],
)
def test_one_line_for_each_graph(record: GraphRecord, level: int, line: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="compilefarm.client"):
        announce(record)
    assert [(found.name, found.levelno, found.getMessage()) for found in caplog.records] == [
        ("compilefarm.client", level, line)
    ]


def test_a_defect_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    record = GraphRecord(number=0, name="", nodes=2, outcome="fallback", reason="defect", message="KeyError: 'x'")
    announce(record, defect=KeyError("x"))
    (found,) = caplog.records
    assert "KeyError" in found.getMessage()
    assert found.exc_info is not None


def test_warnings_show_without_any_logging_set_up() -> None:
    program = (
        "from compilefarm.client.announcements import announce\n"
        "from compilefarm.client.records import GraphRecord\n"
        "announce(GraphRecord(number=0, name='', nodes=2, outcome='bypass', reason='r', message='m'))\n"
        "announce(GraphRecord(number=1, name='', nodes=2, outcome='hit'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "compilefarm: graph 0 (2 nodes) is compiled locally, not sent to the farm [r]: m\n"
