"""What torch computes of constants while a graph runs on fake tensors.

Where it knows the elements of tensors, which are of one element, torch has the results computed in memory, so that
sizes can depend on them (torch/_subclasses/fake_tensor.py: _dispatch_impl). It keeps results of one element, and
computes all: `torch.tensor(1.0).repeat(10**12)` is no more to it than a sum. So the elements are forgotten where a
result may be large, and that is found out as of any other tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.fake_tensors import constants_of, forget_constants
from compilefarm.torch_internals.operators import OpOverload, schema_of

MOST_ELEMENTS = 2**16
# A number may be meant for so many dimensions: padding of a convolution, the place of a diagonal.
_DIMENSIONS_OF_NUMBER = 3


def bound_folding(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """To be called before an operator runs on fake tensors: has torch forget the values of its arguments, if their
    result may have more than MOST_ELEMENTS elements.

    Args:
        operator: is about to be run.
        args: positional arguments, tensors among them fake.
        kwargs: named arguments.
    """
    constants = constants_of((args, kwargs))
    if constants and not operator.is_view and _most_elements(operator, args, kwargs, constants) > MOST_ELEMENTS:
        forget_constants((args, kwargs))


def _most_elements(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], constants: Sequence[torch.Tensor]
) -> float:
    """How many elements an operator makes of tensors of one element, at most: as many as its integers say, in each
    dimension that they may be meant for, and, of some operators, those elements (bincount); and of several tensors as
    many as in a matrix with all of them on its diagonal (block_diag)."""
    numbers = [*_integers(operator, args, kwargs)]
    if torch.Tag.dynamic_output_shape in operator.tags:
        numbers += [abs(constant.item()) for constant in constants if constant.numel() == 1]
    # A float, since a product of integers may grow beyond any size.
    return math.prod(1.0 + abs(number) for number in numbers) ** _DIMENSIONS_OF_NUMBER * len(constants) ** 2


def _integers(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[int]:
    """Integers that are no scalars: sizes, numbers of steps, dimensions."""
    named = named_arguments(schema_of(operator), args, kwargs)
    for declared in schema_of(operator).arguments:
        if "int" not in str(declared.type):
            continue
        given = named.get(declared.name)
        yield from (each for each in (given if isinstance(given, list | tuple) else [given]) if type(each) is int)
