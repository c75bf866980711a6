"""Graphs within a graph, while it runs on fake tensors: what they call is looked at like what the graph itself calls,
and those that torch leaves for later run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import recurrences
from compilefarm.graph.targets import find_hazard, is_of_python
from compilefarm.torch_internals.dynamo import IndexingByTensors


@contextmanager
def guarding_bodies(root: GraphModule) -> Iterator[None]:
    """Inside, Python's own functions that graphs within a graph call refuse what might take any time and memory, and
    recurrent networks refuse weights that do not fit.
    """
    bodies = [module for module in root.modules() if isinstance(module, GraphModule) and module is not root]
    calls = [
        (node, node.target)
        for body in bodies
        for node in body.graph.nodes
        if node.op == "call_function" and (is_of_python(node.target) or recurrences.is_recurrence(node.target))
    ]
    for node, target in calls:
        node.target = _guarded(target)
    _recompile(bodies)
    try:
        yield
    finally:
        for node, target in calls:
            node.target = target
        _recompile(bodies)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        hazard = find_hazard(function, args=args) or recurrences.find_misfit(function, args=args, kwargs=kwargs)
        if hazard is not None:
            raise InvalidRequest(f"{function.__name__} in a subgraph: {hazard}")
        return function(*args, **kwargs)

    return call


def _recompile(bodies: Sequence[GraphModule]) -> None:
    for body in bodies:
        body.recompile()


def run_deferred(operator: str, args: Sequence[Any]) -> None:
    """Runs those graphs of a higher-order operator that torch does not run on fake tensors, but when it compiles.

    Args:
        operator: its name.
        args: its positional arguments, which it has been called with.
    """
    run = _DEFERRED.get(operator)
    if run is not None:
        run(*args)


def _run_backward(forward: GraphModule, backward: GraphModule, *operands: Any) -> None:
    # torch/_functorch/autograd_function.py: AutogradFunctionApply
    outputs, saved = forward(*operands)
    results = outputs if isinstance(outputs, list | tuple) else (outputs,)
    gradients = [torch.zeros_like(each) if isinstance(each, torch.Tensor) else None for each in results]
    backward(*gradients, *saved)


def _run_condition(condition: GraphModule, _: GraphModule, carried: Sequence[Any], further: Sequence[Any]) -> None:
    condition(*carried, *further)


def _run_modifications(
    query: torch.Tensor,
    _key: torch.Tensor,
    _value: torch.Tensor,
    modify_score: GraphModule,
    block_mask: Sequence[Any],
    _scale: float,
    _options: object,
    of_score: Sequence[Any] = (),
    of_mask: Sequence[Any] = (),
) -> None:
    # torch/_higher_order_ops/flex_attention.py: trace_flex_attention
    places = [query.new_zeros((), dtype=torch.int) for _ in range(4)]
    with IndexingByTensors():
        modify_score(query.new_zeros(()), *places, *of_score)
        block_mask[-1](*places, *of_mask)


_DEFERRED: Mapping[str, Callable[..., None]] = {
    "autograd_function_apply": _run_backward,
    "flex_attention": _run_modifications,
    "while_loop": _run_condition,
}
