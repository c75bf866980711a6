"""Collectives on the wire: groups by number and size, and no text of a request where a group is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.core.process_groups import MAX_GROUPS, MAX_SIZE
from compilefarm.graph.adapting import adapt_job
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import decode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import capture, fixed_environment
from compilefarm.service.validation import validate
from compilefarm.torch_internals.process_groups import register_collectives, registered_group
from compilefarm.v1.graph_pb2 import Call, Graph, Node, ProcessGroup, Value
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.process_groups import make_group

GROUPS = {"tp 0:1'": 2, "dp": 2, "world": 4}
collectives = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def groups() -> Iterator[None]:
    register_collectives()
    with ExitStack() as stack:
        for name, size in GROUPS.items():
            stack.enter_context(registered_group(name, make_group(size)))
        yield
    torch.compiler.reset()


def reducing(*names: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A program that adds up tensors of each group, one after the other."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = collectives.wait_tensor(collectives.all_reduce(x.sin(), "sum", name))
        return x

    return program


def encoded(program: Callable[..., Any], *shape: int) -> EncodedJob:
    return capture(program, torch.ones(shape or (4, 4))).encode()


def key(program: Callable[..., Any]) -> str:
    return key_of(encoded(program).job).text


def test_a_key_has_sizes_of_groups_and_no_names() -> None:
    assert key(reducing("dp")) == key(reducing("tp 0:1'"))
    assert key(reducing("dp")) != key(reducing("world"))
    # One group twice is not two groups.
    assert key(reducing("dp", "dp")) != key(reducing("dp", "tp 0:1'")) == key(reducing("tp 0:1'", "dp"))
    job = encoded(reducing("tp 0:1'", "world", "tp 0:1'"))
    assert job.process_groups == ("tp 0:1'", "world")
    assert [group.size for group in job.job.graph.process_groups] == [2, 4]
    assert b"tp 0" not in job.job.SerializeToString()


def test_a_graph_has_the_collectives_that_were_captured() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wait = collectives.wait_tensor
        gathered = wait(collectives.all_gather_into_tensor(x, 4, "world"))
        many = collectives.all_reduce_coalesced([x, gathered], "max", "dp")
        parts = collectives.reduce_scatter_tensor_coalesced([gathered], "avg", 4, "world")
        exchanged = collectives.all_to_all_single(x, [1, 1, 1, 1], [1, 1, 1, 1], "world")
        return *map(wait, many), *map(wait, parts), wait(exchanged), wait(collectives.broadcast(x, 3, "world"))

    job = encoded(program).job
    validate(job, max_nodes=100)
    decoded = decode_job(job, blobs={})
    calls = {str(node.target): node.args for node in decoded.graph_module.graph.nodes if len(node.args) > 2}
    assert len(calls) == 5
    assert {args[-1] for args in calls.values()} == {"compilefarm_group_0_of_4", "compilefarm_group_1_of_2"}
    shapes = [tuple(node.meta["example_value"].shape) for node in decoded.graph_module.graph.output_node().args[0]]
    assert shapes == [(4, 4), (16, 4), (4, 4), (4, 4), (4, 4)]


def test_a_group_that_there_is_not_is_no_request() -> None:
    graph = capture(reducing("dp"), torch.ones(4, 4))
    for node in graph.graph_module.graph.nodes:
        node.args = tuple("gone" if argument == "dp" else argument for argument in node.args)
    with pytest.raises(Bypass, match="gone") as caught:
        graph.encode()
    assert caught.value.reason == "process_group"


def test_a_saved_function_says_no_group_of_the_process_that_loads_it() -> None:
    job = encoded(reducing("dp"))
    with pytest.raises(Bypass, match="process groups"):
        adapt_job(job.job, blobs=job.blobs, environment=fixed_environment)


def test_what_is_waited_for_is_the_same_memory() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return collectives.wait_tensor(x).add_(1)

    assert decode_job(encoded(program).job, blobs={}).written_inputs == {0}


def call_of(job: Job, name: str) -> Call:
    return next(node.call for node in job.graph.nodes if node.call.target.startswith(f"_c10d_functional::{name}"))


def scattering() -> Job:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wait = collectives.wait_tensor
        scattered = wait(collectives.reduce_scatter_tensor(x, "sum", 2, "dp"))
        exchanged = wait(collectives.all_to_all_single(x, [2, 2], [1, 3], "dp"))
        return scattered, exchanged, wait(collectives.broadcast(x, 1, "dp"))

    return encoded(program).job


def _set(place: int, value: Value) -> Callable[[Call], None]:
    return lambda call: call.args[place].CopyFrom(value)


def _splits(*sizes: int) -> Value:
    value = Value()
    value.list.items.extend(Value(integer=size) for size in sizes)
    return value


HOSTILE: dict[str, tuple[str, Callable[[Call], None]]] = {
    "unknown group": ("reduce_scatter", _set(3, Value(process_group=1))),
    "group as text": ("reduce_scatter", _set(3, Value(text="compilefarm_group_0_of_2"))),
    "code as a group": ("reduce_scatter", _set(3, Value(text="', x); import os #"))),
    "group as a number": ("reduce_scatter", _set(3, Value(integer=0))),
    "group as the reduction": ("reduce_scatter", _set(1, Value(process_group=0))),
    "unknown reduction": ("reduce_scatter", _set(1, Value(text="system"))),
    "code as the reduction": ("reduce_scatter", _set(1, Value(text="sum', 2, '0'); import os; x = ('"))),
    "another size": ("reduce_scatter", _set(2, Value(integer=4))),
    "an enormous size": ("reduce_scatter", _set(2, Value(integer=10**9))),
    "a negative size": ("reduce_scatter", _set(2, Value(integer=-2))),
    "too many parts": ("all_to_all", _set(1, _splits(1, 1, 2))),
    "negative parts": ("all_to_all", _set(2, _splits(-1, 5))),
    "parts of more than there is": ("all_to_all", _set(2, _splits(3, 3))),
    "negative rank": ("broadcast", _set(1, Value(integer=-1))),
    "rank of nobody": ("broadcast", _set(1, Value(integer=2))),
    "group for a tensor": ("broadcast", _set(0, Value(process_group=0))),
    "text to an operator of another name": ("broadcast", lambda call: setattr(call, "target", "aten::relu")),
    "what waits for a peer": ("broadcast", lambda call: setattr(call, "target", "_c10d_functional::irecv")),
    "older operators": ("broadcast", lambda call: setattr(call, "target", "c10d_functional::broadcast")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malformed_collectives_are_refused(name: str) -> None:
    operator, change = HOSTILE[name]
    job = scattering()
    change(call_of(job, operator))
    with pytest.raises(InvalidRequest):
        decode_job(job, blobs={})


@pytest.mark.parametrize("sizes", [[0], [MAX_SIZE + 1], [10**9], [2] * (MAX_GROUPS + 1)])
def test_groups_are_bounded(sizes: list[int]) -> None:
    job = scattering()
    del job.graph.process_groups[:]
    job.graph.process_groups.extend(ProcessGroup(size=size) for size in sizes)
    for check in (lambda: validate(job, max_nodes=100), lambda: decode_job(job, blobs={})):
        with pytest.raises(InvalidRequest, match="process group"):
            check()


def test_groups_belong_to_the_graph_that_is_compiled() -> None:
    job = scattering()
    inner = Graph(nodes=[Node(output={})], process_groups=[ProcessGroup(size=2)])
    job.graph.subgraphs.append(inner)
    with pytest.raises(InvalidRequest, match="only the graph itself"):
        validate(job, max_nodes=100)


def test_rows_that_a_group_cannot_divide_are_refused() -> None:
    job = scattering()
    job.graph.process_groups[0].size = 3
    call_of(job, "reduce_scatter").args[2].integer = 3
    with pytest.raises(InvalidRequest, match="no multiple of 3"):
        decode_job(job, blobs={})
