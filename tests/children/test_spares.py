from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest

from compilefarm.worker.process import ChildNotStarted
from compilefarm.worker.spares import SpareChild
from compilefarm.worker.testing import child_settings
from tests.processes import is_alive, parent_of

JOB: ContextVar[str] = ContextVar("job", default="")


class Listener(logging.Handler):
    """Notes for which job each line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.jobs.append(JOB.get())


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture(autouse=True)
def listening(listener: Listener) -> Iterator[None]:
    log = logging.getLogger("compilefarm.worker.spares")
    log.addHandler(listener)
    yield
    log.removeHandler(listener)


async def test_a_child_that_is_started_during_a_job_does_not_belong_to_it(listener: Listener) -> None:
    settings = child_settings("die-before-ready")
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    JOB.set("a job")
    with pytest.raises(ChildNotStarted):
        async with spare.taken():
            raise AssertionError("there is no child")
    await spare.close()
    await settings.server.close()
    assert listener.jobs == [""]


async def test_a_spare_that_was_killed_is_not_given_a_task() -> None:
    settings = child_settings("compile")
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    spare.warm_up()
    await spare.attempted()
    (killed,) = spare._children
    os.kill(killed.pid, signal.SIGKILL)
    await killed._forked.wait()
    async with spare.taken() as child:
        assert child.pid != killed.pid
        assert not child.has_ended
    await spare.close()
    await settings.server.close()


async def test_a_worker_whose_children_have_been_ready_starts_another_at_once_if_one_is_killed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    settings = child_settings("die-second", f"--ledger={ledger}")
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    async with spare.taken():
        pass
    async with asyncio.timeout(30), spare.taken() as child:
        assert not child.has_ended
    assert len(ledger.read_text().splitlines()) == 3
    await spare.close()
    await settings.server.close()


async def test_a_spare_that_was_stopped_is_not_given_a_task() -> None:
    settings = child_settings("compile", answer_seconds=1.0)
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    spare.warm_up()
    await spare.attempted()
    (stopped,) = spare._children
    os.kill(stopped.pid, signal.SIGSTOP)
    async with spare.taken() as child:
        assert child.pid != stopped.pid
        assert not is_alive(stopped.pid)
    await spare.close()
    await settings.server.close()


async def test_a_child_that_is_stopped_before_it_is_ready_is_replaced_soon(tmp_path: Path) -> None:
    settings = child_settings("stop-second", f"--ledger={tmp_path / 'ledger'}", start_seconds=180)
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    async with spare.taken():
        pass
    # Well before a child is given up that takes too long to be ready.
    async with asyncio.timeout(30), spare.taken() as child:
        assert not child.has_ended
    _, stopped, _ = map(int, (tmp_path / "ledger").read_text().split())
    assert not is_alive(stopped)
    await spare.close()
    await settings.server.close()


async def test_a_fork_server_that_was_stopped_is_replaced_soon() -> None:
    settings = child_settings("compile", start_seconds=60, answer_seconds=1.0)
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    async with spare.taken() as child:
        stopped = parent_of(child.pid)
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    # Well before a child is given up that takes too long to be ready.
    async with asyncio.timeout(30), spare.taken() as child:
        assert parent_of(child.pid) not in (None, stopped)
        assert not is_alive(stopped)
    await spare.close()
    await settings.server.close()


async def test_a_task_that_is_called_off_while_its_child_is_asked_leaves_no_child() -> None:
    settings = child_settings("compile", answer_seconds=60)
    spare = SpareChild(settings, owner="slot", restart_seconds=60)
    spare.warm_up()
    await spare.attempted()
    (stopped,) = spare._children
    os.kill(stopped.pid, signal.SIGSTOP)
    taking = asyncio.create_task(spare._take())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not spare.is_ready
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not is_alive(stopped.pid)
    await spare.close()
    await settings.server.close()
