"""PyTorch's samples for its operators go all the way from a pod to a pod; `python -m tests.worker` tries them all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compilefarm.client.requested_graph import RequestedGraph
from compilefarm.worker.comparison import VerificationFailed
from tests.worker import trials
from tests.worker.__main__ import service_of
from tests.worker.operators import names_of_operators
from tests.worker.single_process import Outcome, SingleProcessFarm
from tests.worker.table import Row, Task, row_of
from tests.worker.trials import rows_of

# What was refused though it is right, raised, or was not checked, and what stands for its like.
_FOUND = {
    "chalf float32": "right",
    "chalf float32 training": "right",
    "linalg.cholesky float32": "right",
    "linalg.cholesky complex64": "right",
    "nn.functional.max_unpool2d float32": "right",
    "nn.functional.max_unpool3d.grad float32": "right",
    "linalg.eig float32 training": "passed, not comparable in the pod",
    "bernoulli float32": "passed, not comparable in the pod",
    "empty_like float32": "passed, not comparable in the pod",
    "_batch_norm_with_update float32 training": "right",
    "_softmax_backward_data float32": "right",
    "native_dropout_backward float32": "right",
    "geqrf float32": "right",
    "lu_unpack float32": "right",
    "linalg.ldl_solve float32": "right",
    "histogram float32": "bypass: unknown_target",
}
# Of all that there are, every so many.
_STEP = 150


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _task(name: str, *, compiles: bool = False) -> Task:
    return Task(kind="operators", name=name, device="cpu", compiles=compiles)


# Of numbers gradients and decompositions assume what they are now; the program is for these alone.
_FOR_NUMBERS = ("baddbmm float32 training", "renorm float32 in place")


@pytest.mark.parametrize(
    "name", ["add float32", "nn.functional.layer_norm float32 training", "sort int64", *_FOR_NUMBERS]
)
def test_operators_are_tried_for_all_sizes(name: str) -> None:
    row = row_of(replace(_task(name), dynamic=True))
    assert row.outcomes == ("right",), row.message


def test_the_table_says_which_operators_are_not_served() -> None:
    outcomes = {
        "add float32": ("right", "right"),
        "item float32": ("no graph",),
        "normal float32": ("passed, not comparable in the pod",),
        "histogram float32": ("bypass: unknown_target",),
        "_segment_reduce.lengths float32": ("bypass: unknown_target", "WRONG"),
    }
    rows = [Row(task=_task(name), tried=1, surprises=[], outcomes=each) for name, each in outcomes.items()]
    assert service_of(rows) == [
        "4 of 6 graphs are served (66.7 %), 1 are wrong",
        "not served, bypass: unknown_target: _segment_reduce.lengths float32, histogram float32",
    ]
    assert service_of([]) == ["0 of 0 graphs are served (none), 0 are wrong"]


@pytest.mark.parametrize(("name", "outcome"), _FOUND.items())
def test_what_was_found_once_is_as_it_should_be(name: str, outcome: str) -> None:
    row = row_of(_task(name))
    assert row.outcomes == (outcome,), row.message


def test_no_right_operator_is_refused() -> None:
    rows = [row_of(_task(name)) for name in list(names_of_operators("cpu"))[::_STEP]]
    assert [row for row in rows if row.surprises] == []
    assert sum("right" in row.outcomes for row in rows) > len(rows) / 2


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["nn.functional.gelu float32 training", "linalg.cholesky float32"])
def test_an_operator_is_compiled_packed_loaded_and_checked(name: str) -> None:
    row = row_of(_task(name, compiles=True))
    assert row.outcomes == ("right",), row.message


def _off(amount: float) -> Callable[..., tuple[Any, Any]]:
    manifest = SimpleNamespace()
    return lambda _: (lambda *inputs: [inputs[0].sin() + amount], manifest)


def test_a_wrong_program_is_refused_and_told_from_what_the_pod_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.worker.single_process.VerifyTask", lambda **_: SimpleNamespace())
    monkeypatch.setattr("tests.worker.single_process.compare", lambda *_: None)
    farm = SingleProcessFarm(make=_off(0.1))
    torch.compiler.reset()
    monkeypatch.setattr("compilefarm.client.captured_graph.compile_graph", lambda graph, *_, **__: graph.forward)
    torch.compile(torch.sin, backend=farm.backend)(torch.rand(3, 4))
    (report,) = farm.reports
    assert report.outcome is Outcome.WRONG


def _refuse(*_: object) -> None:
    raise VerificationFailed("it differs")


@pytest.mark.parametrize(
    ("off_by", "outcome"), [(0.0, Outcome.REFUSED), (0.1, Outcome.INDUCTOR_WRONG)], ids=["check", "compiler"]
)
def test_what_a_check_refuses_is_the_compilers_fault_if_the_pod_would_compile_the_same(
    off_by: float, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.worker.single_process.VerifyTask", lambda **_: SimpleNamespace())
    monkeypatch.setattr("tests.worker.single_process.compare", _refuse)
    monkeypatch.setattr(RequestedGraph, "compile", lambda _: _off(off_by)(None)[0])
    # On what the pod's call is given it computes what eager does.
    farm = SingleProcessFarm(make=_off(0.0))
    torch.compiler.reset()
    torch.compile(torch.sin, backend=farm.backend)(torch.rand(3, 4))
    (report,) = farm.reports
    assert report.outcome is outcome, report.message


def _serve(pipe: Connection) -> None:
    pipe.send(trials._Stage("ready"))
    while True:
        task = pipe.recv()
        pipe.send(trials._Stage("check"))
        match task.name:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hangs":
                time.sleep(60)
        pipe.send(Row(task=task, tried=1, surprises=[]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_that_dies_or_hangs_costs_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_PROCESSES", multiprocessing.get_context("fork"))
    monkeypatch.setattr(trials, "_serve", _serve)
    monkeypatch.setattr(trials, "_START_SECONDS", 2.0)
    monkeypatch.setattr(Task, "limit_seconds", 0.5)
    rows = rows_of([_task(name) for name in ("fine", "dies", "hangs", "fine too")], jobs=1, seconds=float("inf"))
    said = {row.task.name: row.message for row in rows}
    assert said.keys() == {"fine", "dies", "hangs", "fine too"}
    assert said["dies"] == "CRASH: check (exit status -9)"
    assert said["hangs"] == "TIME LIMIT: check"
    assert said["fine"] == said["fine too"] == ""


def test_after_its_time_no_row_is_begun() -> None:
    assert list(rows_of([_task("abs float32")], jobs=1, seconds=0.0)) == []
