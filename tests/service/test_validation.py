"""Malformed requests: refused with the place, before anything is done with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compilefarm.core.errors import InvalidRequest
from compilefarm.service.parsing import MOST_NESTED
from compilefarm.service.testing import Refused, ScriptedPool, calling, sample_job, serving
from compilefarm.service.validation import validate
from compilefarm.v1.graph_pb2 import Dictionary, NamedValue, Node, Sequence, Slice, Value
from compilefarm.v1.job_pb2 import Job
from tests.floods import Path, flood, is_repeated, name_of, paths

DIGEST = "0123456789abcdef" * 4
# All fields of a job, so that one that is added later is among them; hints are held to the number of symbols.
REPEATED = [path for path in paths(Job.DESCRIPTOR) if is_repeated(path[-1]) and name_of(path) != "hints"]


def call_of(job: Job):  # type: ignore[no-untyped-def]  # generated code
    return job.graph.nodes[1].call


def nested(value: Value, *, depth: int) -> Value:
    for _ in range(depth):
        value = Value(list=Sequence(items=[value]))
    return value


MALFORMED: dict[str, tuple[Callable[[Job], object], str]] = {
    "no nodes": (lambda job: job.graph.Clear(), "no nodes"),
    "no output": (lambda job: job.graph.nodes.pop(), "node 1 is call: the last node"),
    "two outputs": (lambda job: job.graph.nodes.append(job.graph.nodes[2]), "node 2 is output: the last node"),
    "output in the middle": (lambda job: job.graph.nodes.insert(1, job.graph.nodes[2]), "node 1 is output"),
    "a node without operation": (lambda job: job.graph.nodes.insert(1, Node()), "node 1 does nothing"),
    "too few inputs": (lambda job: job.inputs.pop(), "1 placeholders but the job describes 0 inputs"),
    "too many inputs": (lambda job: job.inputs.add().tensor.SetInParent(), "1 placeholders but .* 2 inputs"),
    "a late placeholder": (
        lambda job: (job.inputs.add().tensor.SetInParent(), job.graph.nodes.insert(2, job.graph.nodes[0])),
        "node 2 is a placeholder, but placeholders come first",
    ),
    "a node that refers to itself": (lambda job: call_of(job).args.add(node=1), "node 1 refers to node 1"),
    "a node that refers ahead": (lambda job: call_of(job).args.add(node=2), "node 1 refers to node 2"),
    "a reference ahead in a list": (
        lambda job: call_of(job).args.append(nested(Value(node=7), depth=3)),
        "node 1 refers to node 7",
    ),
    "a reference ahead in a tuple": (
        lambda job: call_of(job).args.add(tuple=Sequence(items=[Value(node=7)])),
        "node 1 refers to node 7",
    ),
    "a reference ahead in a dictionary": (
        lambda job: call_of(job).args.add(dictionary=Dictionary(entries=[NamedValue(name="a", value=Value(node=7))])),
        "node 1 refers to node 7",
    ),
    "a reference ahead in a slice": (
        lambda job: call_of(job).args.add(slice=Slice(stop=Value(node=7))),
        "node 1 refers to node 7",
    ),
    "a reference ahead in a keyword": (
        lambda job: call_of(job).kwargs.add(name="a", value=Value(node=7)),
        "node 1 refers to node 7",
    ),
    "an output that refers to itself": (
        lambda job: job.graph.nodes[2].output.values.add(node=2),
        "node 2 refers to node 2",
    ),
    "a value of no kind": (lambda job: call_of(job).args.add(), "node 1 has a value of no kind"),
    "a keyword of no kind": (lambda job: call_of(job).kwargs.add(name="a"), "node 1 has a value of no kind"),
    "a keyword twice": (
        lambda job: call_of(job).kwargs.extend([NamedValue(name="a", value=Value(boolean=True))] * 2),
        "node 1 .* without a name of its own: 'a'",
    ),
    "a keyword without name": (
        lambda job: call_of(job).kwargs.add(value=Value(boolean=True)),
        "node 1 .* without a name of its own: ''",
    ),
    "a call of nothing": (lambda job: call_of(job).ClearField("target"), "node 1 calls nothing"),
    "a call of no kind": (lambda job: call_of(job).ClearField("kind"), "node 1 calls nothing"),
    "a constant that is not held": (
        lambda job: job.graph.nodes[1].get_constant.SetInParent(),
        "node 1 reads constant 0, but the graph holds 0",
    ),
    "a digest that is none": (lambda job: job.graph.constants.add(digest="../../etc/passwd"), "constant 0: .*passwd"),
    "a digest in upper case": (
        lambda job: job.graph.constants.add(digest=DIGEST.upper()),
        "constant 0: .*digest",
    ),
    "an input of no kind": (lambda job: job.inputs[0].Clear(), "input 0 is of no kind"),
    "sizes without strides": (lambda job: job.inputs[0].tensor.shape.add(size=3), "input 0 has 1 sizes but 0 strides"),
    "a size that is not set": (
        lambda job: (job.inputs[0].tensor.shape.add(), job.inputs[0].tensor.stride.add(size=1)),
        "input 0 has a size, stride or offset that is not set",
    ),
    "an offset that is not set": (
        lambda job: job.inputs[0].tensor.storage_offset.SetInParent(),
        "input 0 has a size, stride or offset that is not set",
    ),
    "an option that refers to a node": (
        lambda job: job.options.inductor.add(name="max_autotune", value=Value(node=0)),
        "options.inductor refers to node 0",
    ),
    "an option twice": (
        lambda job: job.options.functorch.extend([NamedValue(name="a", value=Value(boolean=True))] * 2),
        "options.functorch .* without a name of its own: 'a'",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_job_is_refused_with_the_place(name: str) -> None:
    spoil, message = MALFORMED[name]
    job = sample_job()
    spoil(job)
    with pytest.raises(InvalidRequest, match=message):
        validate(job, max_nodes=100)


def test_a_job_of_every_kind_of_value_is_accepted() -> None:
    job = sample_job(constants=[DIGEST])
    call = call_of(job)
    call.args.append(nested(Value(node=0), depth=20))
    call.args.add(slice=Slice(start=Value(integer=1)))
    call.args.add(none={})
    call.kwargs.add(name="a", value=Value(dictionary=Dictionary(entries=[NamedValue(name="b", value=Value(real=0.5))])))
    job.options.inductor.add(name="max_autotune", value=Value(boolean=True))
    job.inputs[0].tensor.shape.add(size=0)
    job.inputs[0].tensor.stride.add(size=1)
    job.inputs[0].tensor.storage_offset.size = 0
    validate(job, max_nodes=3)


def test_a_graph_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="3 nodes, more than the 2 that are allowed"):
        validate(sample_job(), max_nodes=2)


async def test_malformed_jobs_reach_no_worker_and_are_counted() -> None:
    pool = ScriptedPool()
    async with serving(pool=pool) as gateway, calling(gateway.address) as calls:
        for spoil, message in MALFORMED.values():
            job = sample_job()
            spoil(job)
            for call in (calls.finish, calls.lookup):
                with pytest.raises(Refused, match=message) as refused:
                    await call(job)
                assert (refused.value.status, refused.value.reason) == ("INVALID_ARGUMENT", "invalid_request")
        assert (await calls.status()).counters.refused == 2 * len(MALFORMED)
    assert pool.assignments == []


async def test_a_large_graph_is_checked_and_keyed_like_a_small_one() -> None:
    job = sample_job()
    output = job.graph.nodes.pop()
    for number in range(1, 3000):
        job.graph.nodes.add().call.CopyFrom(call_of(job))
        job.graph.nodes[-1].call.args[0].node = number
    job.graph.nodes.append(output)
    async with serving() as gateway, calling(gateway.address) as calls:
        made = (await calls.finish(job)).manifest
        assert await calls.lookup(job) == made
        job.graph.nodes[2000].call.args[0].node = 2000
        with pytest.raises(Refused, match="node 2000 refers to node 2000"):
            await calls.finish(job)


@pytest.mark.parametrize("path", REPEATED, ids=name_of)
def test_whatever_is_repeated_is_counted(path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"more than the 1100 values|at most 1000 are allowed"):
        validate(Job.FromString(flood(path, count=1101)), max_nodes=10, max_values=1100)


def test_messages_that_are_nested_too_deep_are_refused() -> None:
    # protobuf parses 100 levels, and a job is part of other messages where it goes on.
    job = sample_job()
    call_of(job).args.append(nested(Value(node=0), depth=MOST_NESTED // 2))
    with pytest.raises(InvalidRequest, match=f"nested more than {MOST_NESTED} deep"):
        validate(job, max_nodes=10)
