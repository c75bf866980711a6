"""Graphs that reach for what is around a compile, and graphs that a local compile fails on, too."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.exc import InductorError

from compilefarm.client import Farm
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.worker.sandbox import SandboxUnavailable, open_sandbox

from .serving import ServedFarm

pytestmark = pytest.mark.compiles

NO_FALLBACKS = {"implicit_fallbacks": False}


def became(farm: ServedFarm, program: Callable[[torch.Tensor], torch.Tensor]) -> GraphRecord:
    """What a pod notes of a graph."""
    ledger = Ledger()
    backend = Farm(farm.address, dependencies=Dependencies(ledger=ledger)).backend
    torch.compile(program, backend=backend, fullgraph=True)(torch.eye(3))
    (record,) = ledger.records()
    return record


@pytest.fixture
def contained(library_farm: ServedFarm) -> ServedFarm:
    """A farm whose children are in a sandbox."""
    try:
        open_sandbox(interpreter=sys.executable, gpu=False)
    except SandboxUnavailable as error:
        pytest.skip(f"{error}: {error.remedy}")
    return library_farm


def test_a_graph_reaches_nothing_around_its_compile(contained: ServedFarm, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    place = str(secret).encode().hex()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tried = became(contained, lambda x: torch.ops.contained.reach(x, port, place))
    assert tried.reason == "compile_error"
    assert "reached: OSError, FileNotFoundError, FileNotFoundError" in tried.message
    assert not secret.with_name("planted").exists()
    assert became(contained, lambda x: torch.relu(x @ x)).outcome == "compiled"
    for command in ("workers", "status"):
        assert "sandbox: bubblewrap" in contained.ask(command)


def test_a_result_that_is_not_what_was_said_fails_the_compile_and_not_the_pod(contained: ServedFarm) -> None:
    tried = became(contained, lambda x: torch.ops.contained.misdescribed(x))
    assert (tried.outcome, tried.resort) == ("fallback", "local")
    assert "contained.misdescribed.default was to give torch.float32(0, 3)" in tried.message


def test_without_a_sandbox_children_share_no_place_either(bare_farm: ServedFarm) -> None:
    # What is found at a place of another child, or is missing there, would fail the second.
    assert [became(bare_farm, graph).outcome for graph in (lambda x: x.sin() + 1, lambda x: x.cos() + 1)] == [
        "compiled",
        "compiled",
    ]


def test_children_share_no_memory_that_can_be_written(contained: ServedFarm) -> None:
    maps = []
    for pid in contained.children():
        # A process may have ended meanwhile; those that bubblewrap runs are nobody's to look at.
        with contextlib.suppress(OSError):
            maps.append(Path(f"/proc/{pid}/maps").read_text())
    libraries = [text for text in maps if "libtorch" in text]
    assert len(libraries) > 2
    assert [line for text in libraries for line in text.splitlines() if line.split()[1] == "rw-s"] == []


def test_a_graph_that_fails_locally_fails_alike_on_the_farm_and_runs_as_it_is(contained: ServedFarm) -> None:
    def compiled(backend: Any) -> torch.Tensor:
        # Inductor has no kernel for it, and may not take the library's.
        torch.compiler.reset()
        program = torch.compile(torch.ops.contained.plain, backend=backend, fullgraph=True, options=NO_FALLBACKS)
        result: torch.Tensor = program(torch.eye(3))
        return result

    with pytest.raises(InductorError) as failed:
        compiled("inductor")
    expected = str(failed.value).partition("\n")[0]
    ledger = Ledger()
    assert torch.equal(
        compiled(Farm(contained.address, dependencies=Dependencies(ledger=ledger)).backend), torch.eye(3)
    )
    (record,) = ledger.records()
    assert (record.reason, record.resort) == ("compile_error", "eager")
    assert record.message.partition("\n")[0] == f"torch._inductor.exc.InductorError: {expected}"
