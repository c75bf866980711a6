"""Rows of the tables, made by processes side by side: one that dies or hangs costs its row, and is replaced."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tests.worker.operators import OnStage
from tests.worker.table import Row, Task, row_of

# Until a process has imported everything, and again until it has tried the C++ compiler.
_START_SECONDS = 300.0
# A process cannot be forked once it has used a GPU.
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Stage:
    name: str


def rows_of(tasks: Sequence[Task], *, jobs: int, seconds: float) -> Iterator[Row]:
    """Rows as they are done.

    Args:
        tasks: what is tried.
        jobs: processes.
        seconds: after that, no more tasks are begun.
    """
    until = time.monotonic() + seconds
    waiting, done = queue.SimpleQueue[Task](), queue.SimpleQueue[Row | None]()
    for task in tasks:
        waiting.put(task)
    threads = [threading.Thread(target=_work, args=(waiting, done, until), daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for _ in threads:
        while (row := done.get()) is not None:
            yield row


def _work(waiting: queue.SimpleQueue[Task], done: queue.SimpleQueue[Row | None], until: float) -> None:
    child: _Child | None = None
    try:
        while time.monotonic() < until:
            task = waiting.get_nowait()
            child = child if child is not None and child.is_alive else _Child()
            done.put(child.row_of(task))
    except queue.Empty:
        pass
    finally:
        if child is not None:
            child.end()
        done.put(None)


class _Child:
    """A process that makes rows."""

    def __init__(self) -> None:
        self._pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.is_alive = self._pipe.poll(_START_SECONDS) and self._receive() is not None
        self._is_new = True

    def row_of(self, task: Task) -> Row:
        if not self.is_alive:
            return _lost(task, "CRASH: at its start")
        limit = task.limit_seconds + (_START_SECONDS if self._is_new else 0.0)
        until, stage, self._is_new = time.monotonic() + limit, "nothing", False
        self._pipe.send(task)
        while self._pipe.poll(max(0.0, until - time.monotonic())):
            said = self._receive()
            if isinstance(said, Row):
                return said
            if said is None:
                self.end()
                return _lost(task, _crash(stage, self._process.exitcode))
            stage = said.name
        self.end()
        return _lost(task, f"TIME LIMIT: {stage}", seconds=limit)

    def end(self) -> None:
        self.is_alive = False
        self._process.kill()
        self._process.join()

    def _receive(self) -> Row | _Stage | None:
        try:
            said: Row | _Stage = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return None
        return said


def _crash(stage: str, code: int | None) -> str:
    # What a library does without a compiler is no fault of the farm.
    whose = "eager crashes" if stage in ("sample", "eager", "local") else "CRASH"
    return f"{whose}: {stage} (exit status {code})"


def _lost(task: Task, why: str, *, seconds: float = 0.0) -> Row:
    surprises = [] if why.startswith("eager") else [why]
    return Row(task=task, tried=0, surprises=surprises, outcomes=(why,), message=why, seconds=seconds)


def _serve(pipe: Connection) -> None:
    pipe.send(_Stage("ready"))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_row_of(task, on_stage=lambda stage: pipe.send(_Stage(stage))))
        if not _is_well(task.device):
            return


def _row_of(task: Task, *, on_stage: OnStage) -> Row:
    try:
        return row_of(task, on_stage=on_stage)
    except Exception as error:  # noqa: BLE001 - it is a row, and the next one has its turn
        return Row(task=task, tried=1, surprises=[f"failed: {type(error).__name__}: {error}"])


def _is_well(device: str) -> bool:
    """Whether the process can go on: an assertion on a GPU leaves one in which nothing runs any more."""
    if device != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
