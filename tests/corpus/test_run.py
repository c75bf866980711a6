"""The runner sees what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import DecodedJob, decode_job

from . import codec
from .comparison import differences, look_at
from .program import Case, Lacking, Program, call, simple
from .run import check_codec


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sin()


PROGRAM = simple("scaled", _scaled, lambda: (torch.randn(3, 4),))


def _decode_wrongly(change: Callable[[torch.fx.Graph], None]) -> Callable[..., DecodedJob]:
    def decode(*args: Any, **kwargs: Any) -> DecodedJob:
        decoded = decode_job(*args, **kwargs)
        change(decoded.graph_module.graph)
        decoded.graph_module.recompile()
        return decoded

    return decode


def _replace(target: str, other: str) -> Callable[[torch.fx.Graph], None]:
    def change(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_method", target=target):
            node.target = other

    return change


def test_views_of_tracked_inputs_are_tracked_where_nothing_else_is() -> None:
    """As within the backward pass of an autograd function."""
    backend, given = codec.CodecBackend(), torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        first, _ = torch.compile(lambda x: x.chunk(2), backend=backend)(given)
    assert first.requires_grad
    assert [(report.outcome, report.unfaithful) for report in backend.reports] == [("sent", [])]


@pytest.mark.parametrize(("target", "other"), [("sin", "cos"), ("mul_", "mul")])
def test_a_wrong_result_and_a_lost_change_of_an_input_are_seen(
    monkeypatch: pytest.MonkeyPatch, target: str, other: str
) -> None:
    monkeypatch.setattr(codec, "decode_job", _decode_wrongly(_replace(target, other)))
    row = check_codec(PROGRAM)
    (graph,) = row.graphs
    assert graph.outcome == "sent"
    assert graph.unfaithful
    assert row.wrong
    assert not row.crashes


@pytest.mark.parametrize(
    ("function", "view"),
    [(lambda x: x * 2, lambda x: x[:1].expand(4, 8)), (lambda x: x.mul_(2) + 1, lambda x: x[:, ::2])],
    ids=["expanded", "written to"],
)
def test_inputs_that_are_no_leaves_lie_as_they_did(function: Any, view: Any) -> None:
    weight = torch.ones(4, 8, requires_grad=True)
    backend = codec.CodecBackend()
    given = view(weight * 2)
    torch.compile(function, backend=backend)(given).sum().backward()
    assert [(report.outcome, report.unfaithful) for report in backend.reports] == [("sent", [])]
    assert weight.grad is not None


def test_what_the_decoder_refuses_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> DecodedJob:
        raise InvalidRequest("no")

    monkeypatch.setattr(codec, "decode_job", refuse)
    row = check_codec(PROGRAM)
    assert [graph.outcome for graph in row.graphs] == ["crash"]
    assert "InvalidRequest: no" in row.crashes[0]
    # The program itself goes on, as a user's would.
    assert not row.wrong


def test_a_bypass_has_its_reason_and_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def bypass(*_: Any, **__: Any) -> Any:
        raise Bypass("some_reason", "words")

    monkeypatch.setattr(codec, "encode_job", bypass)
    row = check_codec(PROGRAM)
    assert [(graph.outcome, graph.reason) for graph in row.graphs] == [("bypass", "some_reason")]
    assert not row.crashes
    assert not row.differences


def test_what_raises_outside_of_graphs_is_a_crash() -> None:
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in the program")

    row = check_codec(simple("failing", fail, lambda: (torch.ones(1),)))
    assert "in the program" in row.crashes[0]


def test_what_is_missing_is_named() -> None:
    def build() -> Case:
        raise Lacking("no such thing")

    assert check_codec(Program(name="lacking", build=build)).lacking == "no such thing"


def test_weights_and_their_gradients_are_compared() -> None:
    built = []

    def build() -> Case:
        model = torch.nn.Linear(2, 2, bias=False)
        if built:
            torch.nn.init.ones_(model.weight)
        built.append(model)

        def step(compiled: Any, given: Any) -> None:
            given.to(compiled).sum().backward()

        return Case(function=model, calls=[call(torch.ones(1, 2) * len(built))], use=step)

    wrong = check_codec(Program(name="drifting", build=build, training=True)).wrong
    assert any(difference.startswith("weight") for difference in wrong)
    assert any(difference.startswith("gradient of weight") for difference in wrong)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")])),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("-inf")])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01])),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j])),
        (torch.tensor([1]), torch.tensor([2])),
        (torch.tensor(1.0), 1.0),
        (1, 2),
        (1, True),
        ([1, 2], [1]),
    ],
    ids=str,
)
def test_differences_are_found(given: Any, expected: Any) -> None:
    assert differences(look_at("it", given), look_at("it", expected), precision=torch.float64)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, float("nan"), float("-inf")]),
        torch.empty(0, 3),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.eye(2).to_sparse(),
        float("nan"),
        {"a": [torch.tensor(True), None, "word"]},
    ],
    ids=str,
)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert not differences(look_at("it", value), look_at("it", value))


def test_strides_and_last_bits_count_where_exactness_is_asked_for() -> None:
    ours, theirs = torch.ones(2, 3), torch.ones(3, 2).t()
    off = torch.ones(2, 3) * (1 + 1e-6)
    for other in (theirs, off):
        assert differences(look_at("it", ours), look_at("it", other))
        assert not differences(look_at("it", ours), look_at("it", other), precision=torch.float64)
