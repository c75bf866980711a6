"""Serves a graph uncompiled until the farm has its program, which takes over between two calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from compilefarm.client.announcements import announce, announce_defect
from compilefarm.client.exchange import CompileFailed
from compilefarm.client.programs import Program, Switch
from compilefarm.client.records import RecordWriter
from compilefarm.core.errors import FarmError

_Answer = TypeVar("_Answer")


def in_background(ask: Callable[[], _Answer]) -> Future[_Answer]:
    """Asks in a thread of its own, for which a process that ends does not wait."""

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
            answer.set_exception(error)

    answer: Future[_Answer] = Future()
    threading.Thread(target=run, name="look-up at the farm", daemon=True).start()
    return answer


def has_answer(answer: Future[_Answer], *, within_seconds: float) -> bool:
    """Waits for an answer or an error; whether one has come within so many seconds."""
    return bool(wait([answer], timeout=within_seconds).done)


def serve_meanwhile(eager: Program, *, obtain: Callable[[], Program], writer: RecordWriter) -> Program:
    """Returns the uncompiled graph, whose place the program of the farm takes between two calls.

    Args:
        eager: the uncompiled graph.
        obtain: waits for the program and notes what came of it. Called in a thread of its own, for which a process
            that ends does not wait.
        writer: of the record of the graph.
    """

    def take_over() -> None:
        try:
            switch.program = obtain()
        except (CompileFailed, FarmError) as error:
            stay(error.reason, str(error))
            announce(writer.record)
        except Exception as error:  # noqa: BLE001 - logged; the graph goes on uncompiled
            stay("defect", f"{type(error).__name__}: {error}")
            announce_defect(error, where=f"graph {writer.record.number}")

    def stay(reason: str, message: str) -> None:
        writer.resort_to("eager", obstacle="on_miss says so")
        writer.close("fallback", reason=reason, message=message)

    switch = Switch(eager)
    writer.resort_to("eager", obstacle="the farm is asked for a program meanwhile")
    announce(writer.record)
    threading.Thread(target=take_over, name="program of the farm", daemon=True).start()
    return switch
