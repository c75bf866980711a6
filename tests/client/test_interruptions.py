"""What a signal handler of the program raises goes through to the program: it is no defect of the client, no failure of
a compile, and no difference between programs.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from compilefarm.client import captured_graph
from compilefarm.client.comparison import compare
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import Ledger
from compilefarm.reuse import capture, verification


class TimeLimit(TimeoutError):
    """As task queues raise one, of a kind that operating systems raise, too."""


def end(*_: Any) -> None:
    raise TimeLimit


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, end)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt(*_: Any, **__: Any) -> Any:
    signal.raise_signal(signal.SIGUSR1)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def compiled(address: str) -> Any:
    farm = Farm(address, dependencies=Dependencies(ledger=Ledger()))
    return farm.compile(fx.symbolic_trace(double), [torch.ones(2)])


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes a connection, interrupts who waits there for an answer, and gives none."""
    waiting = threading.get_ident()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

        def take() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                signal.pthread_kill(waiting, signal.SIGUSR1)

        taken = threads.submit(take)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        taken.result()


def test_waiting_for_a_farm_ends(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_graph, "compile_graph", lambda *_, **__: pytest.fail("it was compiled all the same"))
    with pytest.raises(TimeLimit):
        compiled(silent)


@pytest.mark.parametrize("when", ["compile", "first call"])
def test_a_compile_in_the_pod_ends(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph = interrupt if when == "compile" else lambda *_, **__: interrupt
    monkeypatch.setattr(captured_graph, "compile_graph", compile_graph)
    with pytest.raises(TimeLimit):
        compiled("127.0.0.1:1")(torch.ones(2))


def test_a_program_that_is_interrupted_is_not_said_to_differ() -> None:
    eager = fx.symbolic_trace(double)
    with pytest.raises(TimeLimit):
        compare(interrupt, eager=eager, code=eager.code, inputs=[torch.ones(2)], held=())


@pytest.mark.parametrize("module", [capture, verification], ids=["published", "verified"])
def test_what_a_package_is_about_is_not_said_to_be_gone(module: Any) -> None:
    class Scope:
        follow = staticmethod(interrupt)

    with pytest.raises(TimeLimit):
        module._follow(Scope(), SimpleNamespace(name="L['self']"))
