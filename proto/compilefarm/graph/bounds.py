"""What one operator may ask for: memory within the tensors that it is given, and a bounded number of results.

Operators are looked at before they run on fake tensors, whatever in a graph came down to them: a function of Python, a
method, a composite operator, a subgraph.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compilefarm.core.expressions import MAX_MAGNITUDE
from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.symbolic_shapes import GuardOnDataDependentSymNode
from compilefarm.v1.graph_pb2 import Graph
from compilefarm.v1.job_pb2 import Job

_SEPARATORS = re.compile(r"[.:]+")
# Parts of one tensor. A model that takes a sequence apart has some thousand.
MOST_RESULTS = 20_000
# Operators that a graph comes down to: a recurrent network of four layers takes some 80 for each step. On fake tensors
# 10,000 take about a second.
MOST_OPERATORS = 300_000
MOST_OPERATORS_PER_NODE = 20

_LONGEST_EXPRESSION = 4_000
# Torch multiplies sums out to compare them (torch/utils/_sympy: safe_expand); a thousand terms take some 0.1 s.
_MOST_TERMS = 1_000
_VIEWS = frozenset({"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"})

_aten = torch.ops.aten
Arguments = Mapping[str, Any]


class OperatorCount:
    """Counts the operators that a graph of so many nodes comes down to.

    Args:
        nodes: of the graph and of those within it.
    """

    def __init__(self, *, nodes: int) -> None:
        self._left = MOST_OPERATORS + nodes * MOST_OPERATORS_PER_NODE

    def find_excess(self) -> str | None:
        """Counts one more; why it may not run, or None if it may."""
        self._left -= 1
        return "the graph comes down to more operators than any model" if self._left < 0 else None


def find_excess(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an operator may not run with these arguments; None if it may.

    Args:
        operator: is about to be run.
        args: positional arguments, tensors among them fake.
        kwargs: named arguments.
    """
    find = _CHECKS.get(operator)
    if find is None:
        return None
    return find(_named(operator, args, kwargs))


def find_unknown_view(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an operator may not run in a graph that calls as_strided itself: of other graphs torch makes such views."""
    if _CHECKS.get(operator) is not _reaches_out or _is_within(_named(operator, args, kwargs)) is not None:
        return None
    return "whether it stays within its memory depends on elements"


def gives_other_strides(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator views a whole tensor from where it begins, with other strides.

    Inductor leaves gaps between the rows of what a backward is given (ir.py: _pad_strides). AOTAutograd says so of the
    fake tensor, whose memory is as small as before (_functorch/_aot_autograd/graph_compile.py).
    """
    if operator is not _aten.as_strided.default:
        return False
    named = _named(operator, args, kwargs)
    try:
        return named["storage_offset"] is None and list(named["size"]) == list(_viewed(named).shape)
    except GuardOnDataDependentSymNode:
        return False


def find_misplaced_view(job: Job) -> str | None:
    """Why a job whose graph calls as_strided may not be given its inputs; None if it may.

    Where an input does not begin with its memory, torch 2.11 counts from the input what eager counts from the
    memory (torch/_inductor/lowering.py: as_strided).
    """
    for number, given in enumerate(job.inputs):
        offset = given.tensor.storage_offset
        if given.tensor.HasField("storage_offset") and (offset.WhichOneof("value") != "size" or offset.size):
            return f"input {number} begins at an offset, and the graph calls as_strided"
    return None


def calls_views(graph: Graph) -> bool:
    """Whether a graph, or one within it, calls as_strided or what is like it."""
    names = (_SEPARATORS.split(node.call.target) for node in graph.nodes)
    return any(not _VIEWS.isdisjoint(parts) for parts in names) or any(map(calls_views, graph.subgraphs))


def grows(value: object) -> bool:
    """Whether an integer or a condition that a graph computes is larger than what can be computed with."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    hint = value.node.hint
    is_large = isinstance(value, torch.SymInt) and hint is not None and abs(int(hint)) > MAX_MAGNITUDE
    return is_large or is_too_long(value.node.expr)


def is_too_long(expression: Any) -> bool:
    """Whether an expression of symbols (sympy's) is longer than that of any size, as it is or multiplied out."""
    return len(str(expression)) > _LONGEST_EXPRESSION or _terms(expression) > _MOST_TERMS


def _terms(expression: Any) -> int:
    """How many terms an expression has when it is multiplied out, at most."""
    parts = [_terms(part) for part in expression.args]
    if expression.is_Add:
        return sum(parts)
    if expression.is_Mul:
        return math.prod(parts)
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return math.comb(parts[0] + int(expression.exp) - 1, int(expression.exp))
    return max(parts, default=1)


def _named(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """All arguments by their names in the schema, defaults included."""
    declared = schema_of(operator).arguments
    defaults = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    return {**defaults, **named_arguments(schema_of(operator), args, kwargs)}


def _reaches_out(named: Arguments) -> str | None:
    """A view of another shape has to lie within the memory of what it views: Inductor computes addresses of these
    numbers and asks nobody (torch/_inductor/lowering.py: as_strided).
    """
    if _is_within(named) is not False:
        return None
    last, room = _extent(named)
    return f"it reaches to element {last} of a memory of {room} elements"


def _is_within(named: Arguments) -> bool | None:
    """Whether a view lies within its memory, with guards on symbols so that it does at every call; None if that depends
    on elements.
    """
    last, room = _extent(named)
    try:
        if _offset(named) >= 0 and all(step >= 0 for step in named["stride"]) and last < room:
            return True
        return any(size == 0 for size in named["size"])
    except GuardOnDataDependentSymNode:
        return None


def _extent(named: Arguments) -> tuple[Any, Any]:
    """The last element that a view reaches, and how many there are."""
    tensor = _viewed(named)
    steps = zip(named["size"], named["stride"], strict=True)
    last = _offset(named) + sum((size - 1) * step for size, step in steps)
    return last, tensor.untyped_storage().nbytes() // tensor.element_size()


def _offset(named: Arguments) -> Any:
    given = named["storage_offset"]
    return _viewed(named).storage_offset() if given is None else given


def _viewed(named: Arguments) -> Any:
    return next(named[name] for name in ("source", "self") if name in named)


def _parts(count: Callable[[Arguments], Any]) -> Callable[[Arguments], str | None]:
    """A check of the number of parts into which a tensor is taken apart."""

    def find(named: Arguments) -> str | None:
        number = _hint(count(named))
        return None if _is_unknown(number) or number <= MOST_RESULTS else f"it makes {number} tensors of one"

    return find


def _length(named: Arguments) -> Any:
    """How long a tensor is where it is taken apart."""
    tensor, dim = named["self"], named["dim"]
    # Out of range: torch says so itself.
    return tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else 0


def _by_size(named: Arguments) -> Any:
    size = _hint(named["split_size"])
    return 0 if _is_unknown(size) or size <= 0 else _length(named) // size


def _hint(value: Any) -> Any:
    """A number; for a symbol, what it is while the graph is compiled, and itself if that depends on elements."""
    return value if _is_unknown(value) else int(value.node.hint) if isinstance(value, torch.SymInt) else value


def _is_unknown(value: Any) -> bool:
    """Whether a number depends on elements of tensors."""
    return isinstance(value, torch.SymInt) and value.node.hint is None


_CHECKS: Mapping[OpOverload, Callable[[Arguments], str | None]] = {
    **dict.fromkeys(
        (
            _aten.as_strided.default,
            _aten.as_strided_.default,
            _aten.as_strided_copy.default,
            _aten.as_strided_copy.out,
            _aten.as_strided_scatter.default,
            _aten.as_strided_scatter.out,
            _aten.set_.source_Tensor_storage_offset,
        ),
        _reaches_out,
    ),
    **dict.fromkeys((_aten.unbind.int, _aten.unbind_copy.int, _aten.unbind_copy.int_out), _parts(_length)),
    **dict.fromkeys(
        (
            _aten.split.Tensor,
            _aten.split_copy.Tensor,
            _aten.split_copy.Tensor_out,
            _aten.unsafe_split.Tensor,
            _aten.unsafe_split.Tensor_out,
        ),
        _parts(_by_size),
    ),
    **dict.fromkeys(
        (
            _aten.split_with_sizes.default,
            _aten.split_with_sizes_copy.default,
            _aten.split_with_sizes_copy.out,
            _aten.unsafe_split_with_sizes.default,
            _aten.unsafe_split_with_sizes.out,
        ),
        # NumPy's functions make such a list of a number.
        _parts(lambda named: len(named["split_sizes"])),
    ),
}
