"""What a program makes of weights alone: made once for each set of weights, by torch's own operators.

Torch makes it while it compiles, and goes on with it whatever becomes of the weights. Here it is made anew when a
weight was written to, or is another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.graph.operators import find_operator
from compilefarm.torch_internals.autograd import count_writes
from compilefarm.torch_internals.freezing import ITEM, Preparation, Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What was made of weights.

    Attributes:
        states: of the weights: where each was, and how often it had been written to.
        results: what the program takes.
        watched: references to the weights, which tell when one of them goes.
    """

    states: Sequence[tuple[int, int]]
    results: Sequence[torch.Tensor]
    watched: Sequence[weakref.ref[torch.Tensor]]


class PreparedProgram:
    """A program behind a preparation: takes weights as they are. Models that share the program each have their own
    results, as long as their weights live.

    Args:
        program: takes a list, of the inputs that are no weights and of what is made of weights, and empties it.
        preparation: what is made of weights.
    """

    def __init__(self, program: Callable[[list[Any]], Any], preparation: Preparation) -> None:
        self._program = program
        self._preparation = preparation
        # By the id() of each weight: as long as they live nothing else has these.
        self._prepared: dict[tuple[int, ...], _Prepared] = {}

    def __call__(self, inputs: list[Any]) -> Any:
        weights, others = self._preparation.split(inputs)
        inputs.clear()
        return self._program([*others, *self._results(weights)])

    def _results(self, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        numbers = tuple(map(id, weights))
        states = [(weight.data_ptr(), count_writes(weight)) for weight in weights]
        found = self._prepared.get(numbers)
        if found is None or found.states != states:
            found = _Prepared(
                states=states,
                results=prepare(self._preparation, weights),
                watched=[weakref.ref(weight, lambda _: self._prepared.pop(numbers, None)) for weight in weights],
            )
            self._prepared[numbers] = found
        return found.results


def prepare(preparation: Preparation, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Makes of weights what a program takes.

    Raises:
        ValueError: they, or what is made of them, are not such as the program was compiled for, or there is no such
            operator.
    """
    for weight, form in zip(weights, preparation.forms, strict=True):
        given = (weight.dtype, tuple(weight.shape), weight.stride())
        if _places(*given) != _places(*form):
            raise ValueError(f"a weight is {given}, and the program was compiled for {form}")
    values: list[Any] = list(weights)
    with torch.no_grad():
        for step in preparation.steps:
            args = _filled(step.args, values)
            kwargs = {name: _filled(value, values) for name, value in step.kwargs.items()}
            values.append(args[0][args[1]] if step.operator == ITEM else _operator(step.operator)(*args, **kwargs))
    results = [values[result.number] for result in preparation.results.values()]
    for name, result, size in zip(preparation.results, results, preparation.sizes, strict=True):
        if tuple(result.shape) != size:
            raise ValueError(f"{name} is of {tuple(result.shape)}, and the program was compiled for {size}")
    return results


def _places(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[torch.dtype, tuple[int, ...], list[int]]:
    """What says where elements lie. The stride of a dimension with one element does not; requests have another."""
    return dtype, shape, [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and 0 not in shape]


def _filled(value: Any, values: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return values[value.number] if isinstance(value, Reference) else value


def _operator(name: str) -> Callable[..., Any]:
    found = find_operator(name, is_overload="." in name)
    if found is None:
        raise ValueError(f"weights are prepared by {name}, which is no operator of this torch")
    return found
