"""A pod that compiles graph after graph, for ever, keeps no more of each than torch does."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sized
from typing import Any

import pytest
import torch
from torch import fx
from torch._guards import CompileContext, CompileId, compile_context

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.records import Ledger
from compilefarm.client.testing import FakeGraphModule, FakeRuntime
from compilefarm.graph import tracing
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import fixed_environment
from compilefarm.loader import kernels

DEAD = "127.0.0.1:1"
_TABLES = (dict, list, set, deque, weakref.WeakValueDictionary)


def tables() -> dict[str, int]:
    """Sizes of all that modules of ours keep: tables, and what functions remember."""
    # What other tests have left goes at any time, also out of weak tables.
    gc.collect()
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("compilefarm.")]:
        for name, value in vars(module).items():
            if isinstance(value, _TABLES):
                found[f"{module.__name__}.{name}"] = len(value)
            elif isinstance(value, functools._lru_cache_wrapper):
                found[f"{module.__name__}.{name}"] = value.cache_info().currsize
    return found


def sized_parts(owner: Any, *, depth: int = 6) -> int:
    """How much the tables within an object hold, but for records."""
    if isinstance(owner, str | bytes | Ledger) or depth == 0:
        return 0
    if isinstance(owner, _TABLES) and isinstance(owner, Sized):
        values = owner.values() if isinstance(owner, dict) else owner
        return len(owner) + sum(sized_parts(value, depth=depth - 1) for value in values)
    if not type(owner).__module__.startswith("compilefarm."):
        return 0
    slots = [name for ancestor in type(owner).__mro__ for name in getattr(ancestor, "__slots__", ())]
    values = [*getattr(owner, "__dict__", {}).values(), *(getattr(owner, name, None) for name in slots)]
    return sum(sized_parts(value, depth=depth - 1) for value in values)


def test_ten_thousand_graphs_leave_no_more_than_the_last_records() -> None:
    ledger = Ledger()
    farm = Farm(DEAD, dependencies=Dependencies(runtime=FakeRuntime(), ledger=ledger))

    def compile_some(count: int) -> None:
        for number in range(count):
            farm.backend(FakeGraphModule(f"graph {number}"), [])()

    compile_some(1_000)
    before, parts = tables(), sized_parts(farm)
    compile_some(10_000)
    assert tables() == before
    assert sized_parts(farm) == parts
    assert len(ledger.records()) == 10_000
    assert parts >= 1_000, "reports that wait for a farm are among what is counted"
    farm.close()


def test_a_farm_that_is_not_there_keeps_no_tensors_of_the_pod() -> None:
    farm = Farm(DEAD, on_failure="eager", dependencies=Dependencies(ledger=Ledger()))
    torch.compiler.reset()
    x = torch.ones(3)
    is_gone = threading.Event()
    weakref.finalize(x.untyped_storage(), is_gone.set)
    torch.compile(torch.sin, backend=farm.backend)(x)
    del x
    # A thread that has asked may hold it for a moment.
    assert is_gone.wait(timeout=10)
    farm.close()


def scaled(number: int) -> Callable[[torch.Tensor], Any]:
    return lambda x: (torch.sin(x) * number, x @ x)


def test_what_is_said_of_a_graph_is_not_kept() -> None:
    def encode_some(first: int, count: int) -> None:
        for number in range(first, first + count):
            graph_module = fx.symbolic_trace(scaled(number))
            encode_job(graph_module, [torch.ones(2, 2)], options={}, environment=fixed_environment)

    encode_some(0, 20)
    before = tables()
    encode_some(20, 200)
    assert tables() == before


def test_frames_with_floats_are_forgotten_in_their_order() -> None:
    for number in range(tracing.MOST_FRAMES + 50):
        with compile_context(CompileContext(CompileId(frame_id=number, frame_compile_id=0))):
            frame = tracing._current_frame()
            assert frame is not None
            assert tracing._current_frame() is frame
    assert list(tracing._frames)[-1] == tracing.MOST_FRAMES + 49
    assert len(tracing._frames) == tracing.MOST_FRAMES


class _Kernel:
    """As much of Inductor's kernel as is needed here."""


def test_kernels_are_kept_as_long_as_wrappers_and_their_bytes_no_longer_than_a_load(monkeypatch: Any) -> None:
    loads = []

    def load(content: bytes, *, device: int) -> _Kernel:
        loads.append((content, device))
        return _Kernel()

    monkeypatch.setattr(kernels, "_load", load)
    with kernels.offering_kernels({"00ff": b"code"}):
        wrappers = [kernels.finished_kernel("00ff"), kernels.finished_kernel("00ff")]
        other = kernels.finished_kernel("00ff", device=3)
    assert wrappers[0] is wrappers[1] is kernels.finished_kernel("00ff")
    assert other is not wrappers[0]
    assert loads == [(b"code", 0), (b"code", 3)]
    wrappers.clear()
    assert list(kernels._loaded) == [("00ff", 3)]
    with pytest.raises(KeyError):
        kernels.finished_kernel("00ff")
