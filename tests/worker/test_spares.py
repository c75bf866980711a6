from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from compilefarm.worker.process import ChildNotStarted
from compilefarm.worker.spares import SpareChild
from compilefarm.worker.testing import child_settings

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
    spare = SpareChild(child_settings("die-before-ready"), owner="slot", restart_seconds=60)
    JOB.set("a job")
    with pytest.raises(ChildNotStarted):
        async with spare.taken():
            raise AssertionError("there is no child")
    await spare.close()
    assert listener.jobs == [""]
