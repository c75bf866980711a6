"""Two pods ask for one graph; one of them is in another state. It never gets the other's program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.core.keys import key_of
from compilefarm.graph.ambient import apply_ambient, capture_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.testing import CapturedGraph, capture, trace
from compilefarm.graph.tracing import faking

from .rows import ROWS, Guard, Row


@functools.cache
def captured(program: Callable[..., Any], *, device: str = "cpu") -> CapturedGraph:
    if device == "cpu":
        return capture(program, torch.rand(4, 4))
    with faking():
        return trace(program, torch.rand(4, 4, device=device))


@pytest.fixture
def default_key(row: Row) -> str:
    return key_of(captured(row.program, device=row.device).encode().job).text


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_pods_in_two_states(row: Row, default_key: str) -> None:
    graph = captured(row.program, device=row.device)
    with row.enter():
        if row.guard is Guard.BYPASS:
            with pytest.raises(Bypass):
                graph.encode()
            return
        job = graph.encode().job
        state = capture_ambient([row.device])
    assert key_of(job).text != default_key
    assert key_of(graph.encode().job).text == default_key
    # A worker in the default state takes the other on, and is as it was afterwards.
    with apply_ambient(job.ambient):
        assert capture_ambient([row.device]) == state
    assert key_of(graph.encode().job).text == default_key


# torch refuses to tell the general precision of products beside this one.
_SEEN_ON_CPUS = "cuda.matmul.fp32_precision"


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.device == "cuda" and name != _SEEN_ON_CPUS])
def test_what_decides_for_gpus_alone_keeps_no_other_pods_apart(name: str) -> None:
    graph = captured(ROWS[name].program)
    usual = key_of(graph.encode().job)
    with ROWS[name].enter():
        assert key_of(graph.encode().job) == usual


def test_a_graph_without_contractions_does_not_ask_in_which_order_they_go() -> None:
    graph = captured(ROWS["gradients off"].program)
    with ROWS["contraction greedy"].enter():
        greedy = graph.encode().job
    assert key_of(greedy) == key_of(graph.encode().job)
