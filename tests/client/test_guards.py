"""Programs with guards that take the place of an uncompiled graph: calls beyond the guards stay uncompiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.client.exchange import Delivery
from compilefarm.client.guards import guarded
from compilefarm.client.loading import Loader
from compilefarm.client.records import Ledger
from compilefarm.client.requested_graph import RequestedGraph
from compilefarm.client.resorts import Resorts
from compilefarm.client.self_check import SelfCheck
from compilefarm.client.testing import FakeClock, FakeRuntime
from compilefarm.core import expressions
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.graph_pb2 import Dimension, Expression, Input, Operation, TensorSpec
from compilefarm.v1.job_pb2 import Job, Symbol
from compilefarm.v1.manifest_pb2 import Manifest


def symbol(number: int) -> Expression:
    return Expression(symbol=number)


def at_most(number: int, largest: int) -> Expression:
    operands = [symbol(number), Expression(integer=largest)]
    return Expression(operation=Operation(operator=expressions.LE, operands=operands))


def tensor(shape: list[Any], stride: list[Any], offset: Any = 0) -> Input:
    def said(number: Any) -> Dimension:
        return Dimension(size=number) if isinstance(number, int) else Dimension(expression=number)

    spec = TensorSpec(shape=map(said, shape), stride=map(said, stride), storage_offset=said(offset))
    return Input(tensor=spec)


def where(job: Job, *inputs: Any, guards: list[Expression]) -> str:
    program = guarded(guards, job=job, program=lambda *_: "farm", otherwise=lambda *_: "eager")
    place: str = program(*inputs)
    return place


def job_of(*inputs: Input, symbols: int = 1) -> Job:
    return Job(inputs=inputs, symbols=[Symbol()] * symbols)


BASE = torch.zeros(100)
# Each says its symbol in another place; the first call is within a guard of at most 8, the second is beyond.
PLACES = {
    "size": (tensor([symbol(0), 2], [2, 1]), torch.zeros(8, 2), torch.zeros(9, 2)),
    "stride": (tensor([4, 2], [symbol(0), 1]), BASE.as_strided((4, 2), (8, 1)), BASE.as_strided((4, 2), (9, 1))),
    "offset": (tensor([4], [1], symbol(0)), BASE[8:12], BASE[9:13]),
    "integer": (Input(integer=symbol(0)), 8, 9),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_call_beyond_a_guard_stays_uncompiled(place: str) -> None:
    given, inside, beyond = PLACES[place]
    job = job_of(tensor([3], [1]), given)
    assert where(job, torch.zeros(3), inside, guards=[at_most(0, 8)]) == "farm"
    assert where(job, torch.zeros(3), beyond, guards=[at_most(0, 8)]) == "eager"


def test_every_guard_has_to_hold() -> None:
    job = job_of(tensor([symbol(1), symbol(0)], [symbol(0), 1]), symbols=2)
    guards = [at_most(1, 8), at_most(0, 4)]
    assert [where(job, torch.zeros(*size), guards=guards) for size in [(8, 4), (8, 5), (9, 4)]] == [
        "farm",
        "eager",
        "eager",
    ]


def test_a_symbol_that_no_input_is_is_refused_by_name() -> None:
    with pytest.raises(IncompatibleArtifact, match="no input of the graph is its symbol s1"):
        where(job_of(tensor([symbol(0)], [1]), symbols=2), torch.zeros(3), guards=[at_most(0, 8)])


def test_of_a_graph_of_another_process_guards_are_looked_at_at_every_call() -> None:
    runtime, ledger = FakeRuntime(), Ledger()
    encoded = runtime.encode_request(Request(job=job_of(tensor([symbol(0)], [1]))), is_guarded=True)
    check = SelfCheck(fraction=0, resorts=Resorts(on_failure="local"), report=lambda *_: None)
    loader, graph = Loader(runtime=runtime, self_check=check), runtime.local_graph_of_request(encoded)
    delivery = Delivery(outcome="hit", manifest=Manifest(guards=[at_most(0, 8)]), blobs={"": b"program"})
    writer = ledger.open(name="", nodes=1, clock=FakeClock())
    loaded = loader.load(encoded, delivery, is_traced=True, graph=graph, writer=writer)
    found = loader.find(encoded)
    assert found is not None
    shared = loader.share(found, encoded, graph=graph, writer=writer)
    for program in (loaded, shared):
        assert [program(torch.zeros(size))[0] for size in (8, 9, 3)] == ["farm", "eager", "farm"]


def test_a_graph_of_another_process_whose_sizes_differ_is_not_compiled_here() -> None:
    encoded = FakeRuntime().encode_request(Request(job=job_of(tensor([symbol(0)], [1]))), is_guarded=True)
    graph = RequestedGraph(encoded)
    for compile_here in (graph.find_obstacle, graph.compile):
        with pytest.raises(Bypass, match="sizes differ from call to call"):
            compile_here()
    assert graph.find_late_obstacle()
