"""The watch itself: what it must notice, and what it must leave alone."""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import watch
from .watch import DECOYS, watched


@pytest.mark.parametrize(
    "misbehave",
    [
        lambda: importlib.import_module(DECOYS[0]),
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: socket.socket(),
        lambda: Path("/tmp/never-written").write_text(""),
    ],
)
def test_what_it_notices(misbehave: Callable[[], object]) -> None:
    with pytest.raises(AssertionError), watched():
        misbehave()


def _hang() -> None:
    while True:
        pass


def test_it_notices_hangs_and_gives_the_timer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SECONDS", 0.01)
    before, handler = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)
    with pytest.raises(AssertionError, match="more than"), watched():
        _hang()
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (before > 0)


def _swallow() -> None:
    with contextlib.suppress(Exception):
        _hang()


def test_nothing_can_swallow_what_it_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SECONDS", 0.01)
    with pytest.raises(AssertionError), watched():
        _swallow()


def test_it_limits_memory() -> None:
    with pytest.raises(MemoryError), watched():
        bytearray(2 * watch.MEMORY_BYTES)
    bytearray(2 * watch.MEMORY_BYTES)


def test_it_leaves_alone_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with watched():
        assert path.read_text() == "content"
        importlib.import_module("json")
    path.write_text("more")
