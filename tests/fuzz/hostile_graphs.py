"""Graphs of one call of an operator, as requests."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from random import Random
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import fixed_environment
from compilefarm.torch_internals.operators import schema_of
from compilefarm.torch_internals.pytrees import map_leaves
from compilefarm.worker.synthetic import inputs_of

from .guarded_memory import placed
from .hostile_calls import HostileCall

_ITEM = torch.ops.aten._local_scalar_dense.default


class Element(torch.Tensor):
    """A tensor of one integer, of which a graph makes a number."""


def with_element(call: HostileCall, random: Random) -> HostileCall:
    """The call with one of its integers as an element of a tensor; as it is if it has none."""
    places: list[Any] = []
    map_leaves(lambda leaf: places.append(leaf), (list(call.args), dict(call.kwargs)))
    integers = [place for place, leaf in enumerate(places) if isinstance(leaf, int) and not isinstance(leaf, bool)]
    if not integers:
        return call
    chosen, numbers = random.choice(integers), iter(range(len(places)))

    def change(leaf: Any) -> Any:
        return torch.tensor(leaf).as_subclass(Element) if next(numbers) == chosen else leaf

    args, kwargs = map_leaves(change, (list(call.args), dict(call.kwargs)))
    return HostileCall(operator=call.operator, args=args, kwargs=kwargs)


def job_of(call: HostileCall, *, with_gradients: bool = False) -> EncodedJob:
    """A request for a graph that calls the operator, with all of its tensors as inputs.

    Raises:
        Bypass: it cannot be said.
    """
    graph = Graph()
    tensors = call.tensors()
    placeholders = iter([graph.placeholder(f"x{number}") for number in range(len(tensors))])

    def put(tensor: torch.Tensor) -> Node:
        node = next(placeholders)
        return graph.call_function(_ITEM, (node,)) if isinstance(tensor, Element) else node

    given = call.with_tensors(put)
    result = graph.call_function(call.operator, tuple(given.args), dict(given.kwargs))
    graph.output(_outputs(result, call, graph))
    inputs = [_as_input(tensor, with_gradients=with_gradients) for tensor in tensors]
    return encode_job(GraphModule(torch.nn.Module(), graph), inputs, options={}, environment=fixed_environment)


def believed_inputs(job: EncodedJob) -> Mapping[int, torch.Tensor]:
    """The inputs of a request that kernels believe, by their number, with the elements that a farm gives them.

    Raises:
        InvalidRequest, GraphRejected: a farm does not take it.
    """
    decoded = decode(job.job, blobs=job.blobs, admitted=Admitted())
    believed = decoded.believed_inputs | decoded.pivot_inputs
    made = inputs_of(job.job, decoded, first_seed=0)() if believed else []
    return {number: each for number, each in enumerate(made) if number in believed and isinstance(each, torch.Tensor)}


def _outputs(result: Node, call: HostileCall, graph: Graph) -> tuple[Any, ...]:
    returned = schema_of(call.operator).returns
    if len(returned) <= 1:
        return (result,) if returned else ()
    return tuple(graph.call_function(getitem, (result, number)) for number in range(len(returned)))


def _as_input(tensor: torch.Tensor, *, with_gradients: bool) -> torch.Tensor:
    # Apart from each other in memory, also where one is given twice.
    plain = placed(tensor.as_subclass(torch.Tensor))
    is_real = plain.dtype.is_floating_point or plain.dtype.is_complex
    return plain.requires_grad_(with_gradients and is_real)
