"""Operators that a graph comes down to while it is compiled, looked at as they were when it was decoded.

A compile runs a graph anew, with gradients, where it may come down to others: what tensors are asked for (whether they
want gradients, how they lie in memory) can be answered otherwise. Of views there is a last look where Inductor makes
addresses of them, after all that it does to a graph; so there is of sizes and dtypes, which nothing that it puts in the
place of a node may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bounds import find_excess, find_unknown_view, gives_other_strides
from compilefarm.graph.fake_forms import corrected
from compilefarm.graph.folding import bound_folding
from compilefarm.graph.misfits import find_misfit
from compilefarm.torch_internals.lowered_sizes import watching_lowered_sizes
from compilefarm.torch_internals.lowered_views import watching_views
from compilefarm.torch_internals.operator_calls import watching_operators
from compilefarm.torch_internals.operators import OpOverload


@contextmanager
def guarding_operators(*, calls_views: bool) -> Iterator[None]:
    """Inside, no operator runs on fake tensors that would reach outside of its tensors, or make many elements of
    constants, and no node is compiled with other sizes than it was checked with.

    Args:
        calls_views: whether the graph calls as_strided itself, so that each place in memory has to be known.

    Raises:
        InvalidRequest: one would have, even if the compiler went on without it.
    """
    refused: list[str] = []
    checks = (find_excess, partial(find_misfit, lays_out=True), *((find_unknown_view,) if calls_views else ()))

    def look(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        objection = next(filter(None, (find(operator, args, kwargs) for find in checks)), None)
        # Of a graph that calls no such view, it is one that torch makes; what becomes a view of it is looked at last.
        if objection is not None and (calls_views or not gives_other_strides(operator, args, kwargs)):
            refused.append(f"{operator}, while the graph is compiled: {objection}")
            raise InvalidRequest(refused[0])
        bound_folding(operator, args, kwargs)
        return corrected(operator, args, kwargs, run(), lays_out=True)

    def look_at_view(reach: object, room: object, is_within: bool | None) -> None:
        if is_within is False or (is_within is None and calls_views):
            refused.append(f"a view reaches over {reach} bytes of a memory of {room} bytes when it is compiled")
            raise InvalidRequest(refused[0])

    def look_at_difference(node: str, said: str, made: str) -> None:
        refused.append(f"node {node} is checked as {said}, and compiled as {made}")
        raise InvalidRequest(refused[0])

    with (
        watching_operators(look),
        watching_views(look_at_view, guards_sizes=calls_views),
        watching_lowered_sizes(look_at_difference),
    ):
        try:
            yield
        except Exception as error:
            if refused:
                # As it was: torch adds to messages on their way.
                raise InvalidRequest(refused[0]) from error
            raise
    if refused:
        raise InvalidRequest(refused[0])
