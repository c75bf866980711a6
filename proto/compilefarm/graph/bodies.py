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
from compilefarm.graph import flexible_attention, running_calls
from compilefarm.graph.bounds import grows
from compilefarm.graph.reached_operators import ReachCheck
from compilefarm.torch_internals.dynamo import IndexingByTensors
from compilefarm.torch_internals.operators import HigherOrderOperator

_CALLS = ("call_function", "call_method")


@contextmanager
def guarding_bodies(root: GraphModule, *, reach: ReachCheck) -> Iterator[None]:
    """Inside, Python's own functions that graphs within a graph call refuse what might take any time and memory,
    recurrent networks refuse weights that do not fit, operators whose overload torch chooses refuse numbers for dtypes,
    and what torch leaves for later runs at once.

    Args:
        root: the graph.
        reach: is told where something of another library runs.

    Raises:
        InvalidRequest: one of these graphs has not run, so that nothing in it was looked at.
    """
    bodies = [module for module in root.modules() if isinstance(module, GraphModule) and module is not root]
    waiting: set[GraphModule] = set()
    calls = [(node, node.op, node.target) for body in bodies for node in body.graph.nodes if node.op in _CALLS]
    for node, operation, target in calls:
        node.op = "call_function"
        node.target = _watched(target, reach=reach) if operation == "call_function" else _guarded_method(target)
    for body in bodies:
        _note_run(body, waiting)
    _recompile(bodies)
    try:
        yield
    finally:
        for node, operation, target in calls:
            node.op, node.target = operation, target
        _recompile(bodies)
    if waiting:
        raise InvalidRequest("a graph within the graph is never run")


def _watched(target: Any, *, reach: ReachCheck) -> Any:
    if reach.is_trusted(target):
        return _trusted(target, reach=reach)
    if running_calls.may_misfit(target):
        return _guarded(target)
    is_deferring = isinstance(target, HigherOrderOperator) and target.name() in _DEFERRED
    return _run_wholly(target) if is_deferring else target


def _note_run(body: GraphModule, waiting: set[GraphModule]) -> None:
    """Takes a graph from those that are waiting when its first call is made: some run it node by node."""
    calls = (node for node in body.graph.nodes if node.op in _CALLS)
    first = next((node for node in calls if not isinstance(node.target, HigherOrderOperator)), None)
    if first is None:
        return
    called: Any = first.target
    waiting.add(body)

    def call(*args: Any, **kwargs: Any) -> Any:
        waiting.discard(body)
        return called(*args, **kwargs)

    first.target = call


def _run_wholly(operator: HigherOrderOperator) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        run_deferred(operator.name(), args)
        return result

    return call


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        misfit = running_calls.find_misfit(function, args=args, kwargs=kwargs)
        if misfit is not None:
            raise InvalidRequest(f"{function.__name__} in a subgraph: {misfit}")
        return _of_a_size(function(*args, **kwargs))

    return call


def _guarded_method(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        misfit = running_calls.find_misfit(name, args=args, kwargs=kwargs)
        if misfit is not None:
            raise InvalidRequest(f"{name} in a subgraph: {misfit}")
        return _of_a_size(getattr(args[0], name)(*args[1:], **kwargs))

    return call


def _of_a_size(value: Any) -> Any:
    if grows(value):
        raise InvalidRequest("an integer in a subgraph grows beyond what any size is")
    return value


def _trusted(target: Any, *, reach: ReachCheck) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with reach.running(target):
            return target(*args, **kwargs)

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


def _run_combination(combine: GraphModule, given: Sequence[torch.Tensor], further: Sequence[Any]) -> None:
    # torch/_higher_order_ops/associative_scan.py: trace_associative_scan
    first = [each.select(0, 0) for each in given]
    combine(*first, *first, *further)


def _run_hook(tensor: torch.Tensor, hook: GraphModule, *further: Any) -> None:
    # torch/_higher_order_ops/register_hook.py: a backward pass runs it.
    hook(torch.zeros_like(tensor), *further)


def _run_modifications(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    modify_score: GraphModule,
    block_mask: Sequence[Any],
    _scale: float,
    _options: object,
    of_score: Sequence[Any] = (),
    of_mask: Sequence[Any] = (),
) -> None:
    misfit = flexible_attention.find_misfit(query, key, value, block_mask=block_mask)
    if misfit is not None:
        raise InvalidRequest(f"flex_attention: {misfit}")
    # torch/_higher_order_ops/flex_attention.py: trace_flex_attention
    places = [query.new_zeros((), dtype=torch.int) for _ in range(4)]
    with IndexingByTensors():
        modify_score(query.new_zeros(()), *places, *of_score)
        block_mask[-1](*places, *of_mask)


_DEFERRED: Mapping[str, Callable[..., None]] = {
    "associative_scan": _run_combination,
    "autograd_function_apply": _run_backward,
    "flex_attention": _run_modifications,
    "register_hook": _run_hook,
    "while_loop": _run_condition,
    "while_loop_stack_output": _run_condition,
}
