"""Leaves out what no test is about and most pay for: searches for garbage among modules, the timing of guards, and what
torch says of its traces.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.forked_pods import ForkedPods, forking
from tests.guard_timing import guards_not_timed, is_dynamo_imported

# Objects that are made between two searches among the young ones, of which torch makes and drops many; Python's own
# number is 700.
_COLLECT_EVERY = 10_000
_UNTIL_THE_END = ExitStack()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkedPods]:
    """Starts processes that have imported torch, in the environment of the tests."""
    with forking(os.environ) as forks:
        yield forks


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules of torch and of tests stay, so that no search for garbage needs to look at them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # Modules are freed at the very end: what is left then, the bindings of Triton print one by one. Before that,
        # pytest looks for garbage five times.
        atexit.register(gc.unfreeze)
        gc.set_threshold(_COLLECT_EVERY, 20, 20)
        gc.enable()


def pytest_configure() -> None:
    _keep_unheard(logging.getLogger("torch.__trace"))
    logging.getLogger("asyncio").addFilter(_is_no_loop_of_an_earlier_test)


def _keep_unheard(logger: logging.Logger) -> None:
    """Pytest listens to loggers that keep to themselves, and for whoever listens to this one torch writes down all that
    it traces: of what tracing a small program costs, a tenth.
    """
    add = logger.addHandler

    def add_others(handler: logging.Handler) -> None:
        if not type(handler).__module__.startswith("_pytest."):
            add(handler)

    logger.addHandler = add_others  # type: ignore[method-assign]


def _is_no_loop_of_an_earlier_test(record: logging.LogRecord) -> bool:
    """gRPC has one poller for all event loops of a process, which may turn to one that ended with its test."""
    error = record.exc_info[1] if record.exc_info else None
    is_closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (is_closed and "PollerCompletionQueue._handle_events" in record.getMessage())


def pytest_runtest_setup() -> None:
    """Has guards not timed from the first test on that finds Dynamo imported: a test without it does not import it."""
    if is_dynamo_imported():
        _leave_guards_untimed()


@cache
def _leave_guards_untimed() -> None:
    _UNTIL_THE_END.enter_context(guards_not_timed())
