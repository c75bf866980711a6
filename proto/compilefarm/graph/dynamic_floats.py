"""Floats that differ from call to call: Dynamo hands each over as a tensor of one float64 that the graph reads.

On the worker it is a symbol of sympy's, which computes in exact terms: it adds up constants, multiplies sums out, and
takes s - s and 0 * s for 0, whatever s is. What it computes as Python does, with each rounding and with infinities, is
c * s + d. Torch itself computes with a tensor there, or takes the float for a constant
(torch/fx/passes/_tensorify_python_scalars.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import IntEnum
from typing import Any

import torch
from torch.fx import Node

from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode, unbacked_floats_of

_SUMS = frozenset({operator.add, operator.sub})
_PRODUCTS = frozenset({operator.mul, operator.truediv})
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


class DecidingFloats(Bypass):
    """Some of these floats decide something, so that each of their values needs a program of its own.

    Attributes:
        inputs: numbers of the placeholders that they come from; empty if that cannot be told.
    """

    def __init__(self, message: str, *, inputs: Set[int]) -> None:
        super().__init__("dynamic_float", message)
        self.inputs = inputs


class _Form(IntEnum):
    """What has become of a float; a step to a form that is no later one would be merged with what was before."""

    READ = 0
    PRODUCT = 1
    SUM = 2


def is_dynamic_float(node: Node) -> bool:
    """Whether a node reads a float that Dynamo hands over as a tensor, and knows."""
    value = _value_of(node)
    return node.target == "item" and isinstance(value, torch.SymFloat) and value.node.hint is not None


def inexact_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes that compute numbers of these floats in another way than as c * s + d, each of what is read of those
    before it.

    Args:
        nodes: of a graph and all within it; those of each graph in their order.
    """
    forms: dict[Node, _Form] = {}
    for node in nodes:
        value = _value_of(node)
        if is_dynamic_float(node) or (node.op == "placeholder" and isinstance(value, torch.SymFloat)):
            forms[node] = _Form.READ
        elif isinstance(value, _NUMBERS) and any(given in forms for given in node.all_input_nodes):
            form = _form_of(node, forms)
            if form is None:
                yield node
            forms[node] = form or _Form.READ


def inputs_of(node: Node) -> Set[int]:
    """Numbers of the placeholders that a node of a graph is computed of."""
    placeholders = node.graph.find_nodes(op="placeholder")
    found, waiting = {node}, [node]
    while waiting:
        further = set(waiting.pop().all_input_nodes) - found
        found |= further
        waiting += further
    return {number for number, placeholder in enumerate(placeholders) if placeholder in found}


def find_deciding(error: BaseException | None, reads: Sequence[Node]) -> Set[int]:
    """Numbers of the placeholders whose floats torch had to know when it ran a graph on fake tensors; empty if it does
    not say.

    Args:
        error: what that ended with, and what that came of.
        reads: nodes of the graph that read a float of a tensor, in the order in which they ran.
    """
    while error is not None and not isinstance(error, GuardOnDataDependentSymNode):
        error = error.__cause__ or error.__context__
    if error is None:
        return frozenset()
    numbers = unbacked_floats_of(error)
    deciding = [node for number, node in enumerate(reads) if number in numbers]
    return {number for node in deciding for number in inputs_of(node)}


def _form_of(node: Node, forms: Mapping[Node, _Form]) -> _Form | None:
    before = max(forms.get(given, _Form.READ) for given in node.all_input_nodes)
    if node.target is operator.neg:
        return before
    after = _Form.SUM if node.target in _SUMS else _Form.PRODUCT if node.target in _PRODUCTS else _Form.READ
    return after if after > before and sum(map(_is_usual, node.args)) == 1 else None


def _is_usual(argument: object) -> bool:
    """Whether it is a constant that a sum or a product with it does not lose the float to."""
    return isinstance(argument, int | float) and argument != 0 and math.isfinite(argument)


def _value_of(node: Node) -> Any:
    return node.meta.get("example_value")
