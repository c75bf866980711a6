"""Wrong programs: graphs with one mistake, of the kinds that compilers make."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

_ARITHMETIC = frozenset({"add", "iadd", "sub", "isub", "mul", "imul", "truediv", "itruediv", "pow", "matmul", "where"})
_REDUCING = frozenset({
    "matmul", "linear", "sum", "mean", "softmax", "log_softmax", "layer_norm", "group_norm", "batch_norm", "conv2d",
    "scaled_dot_product_attention", "var", "norm", "logsumexp", "cumsum", "cross_entropy", "mse_loss",
})  # fmt: skip
_COMPUTING = _REDUCING | _ARITHMETIC | {"gelu", "silu", "relu", "embedding", "stack", "sigmoid", "sin", "cos"}
_SWAPPED = {"sub": operator.sub, "isub": operator.sub, "truediv": operator.truediv, "pow": operator.pow}
# What an accumulator may be by mistake, where a program has a precision.
_NARROWER = {
    torch.float32: torch.bfloat16,
    torch.bfloat16: torch.float8_e5m2,
    torch.float16: torch.float8_e5m2,
}

TOO_NARROW = "accumulator too narrow"
Change = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One mistake.

    Attributes:
        kind: what kind of mistake.
        number: of the node that is computed wrong.
        change: computes it, given what it calls, and on what.
    """

    kind: str
    number: int
    change: Change


def mutations_of(graph_module: GraphModule, *, inside: torch.dtype) -> list[Mutation]:
    """All mistakes that are made in a graph.

    Args:
        graph_module: it.
        inside: the precision that it has; an accumulator is narrower than that by mistake.
    """
    return [
        Mutation(kind=kind, number=number, change=change)
        for number, node in enumerate(graph_module.graph.nodes)
        if node.op in ("call_function", "call_method")
        for kind, change in _changes(node, narrow=_NARROWER[inside])
    ]


def mutated(graph_module: GraphModule, mutation: Mutation) -> Callable[..., Any]:
    """The graph with a mistake."""
    return _Mistaken(graph_module, mutation).run


class _Mistaken(Interpreter):
    def __init__(self, graph_module: GraphModule, mutation: Mutation) -> None:
        super().__init__(graph_module)
        self._mutation = mutation
        self._wrong = list(graph_module.graph.nodes)[mutation.number]

    def run_node(self, n: Node) -> Any:
        if n is not self._wrong:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        function = getattr(torch.Tensor, n.target) if n.op == "call_method" else n.target
        return self._mutation.change(function, args, kwargs)


def _changes(node: Node, *, narrow: torch.dtype) -> Iterator[tuple[str, Change]]:
    name = _name(node)
    value = node.meta["example_value"]
    if name in _ARITHMETIC and any(_is_scalar(argument) for argument in node.args):
        yield "another constant", _another_constant
    if name in _SWAPPED and len(node.args) == 2:
        yield "swapped operands", lambda function, args, kwargs: _SWAPPED[name](args[1], args[0])
    if name == "where":
        yield "swapped operands", lambda function, args, kwargs: function(args[0], args[2], args[1], **kwargs)
    if name in ("add", "iadd", "mul", "imul", "sub") and _is_like(node.args[0], value):
        yield "dropped term", lambda function, args, kwargs: args[0] * 1
    if name in ("linear", "conv2d") and len(node.args) > 2 and isinstance(node.args[2], Node):
        yield "dropped term", lambda function, args, kwargs: function(*args[:2], None, *args[3:], **kwargs)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or name not in _COMPUTING:
        return
    if value.dim() and value.shape[-1] > 1:
        yield "bound off by one", _without_last
        yield "bound off by one", _shifted
    if name in _REDUCING:
        yield TOO_NARROW, partial(_narrowed, narrow)


def _name(node: Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).rstrip("_")


def _is_scalar(argument: object) -> bool:
    return isinstance(argument, int | float) and not isinstance(argument, bool) and argument != 0


def _is_like(argument: object, value: Any) -> bool:
    other = argument.meta["example_value"] if isinstance(argument, Node) else None
    return isinstance(other, torch.Tensor) and isinstance(value, torch.Tensor) and other.shape == value.shape


def _another_constant(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*(_another(each) if _is_scalar(each) else each for each in args), **kwargs)


def _another(number: float) -> float:
    # Integers stay integers, since they may be added to some.
    return number + 1 if isinstance(number, int) else number * 1.2


def _without_last(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    right = function(*args, **kwargs)
    return torch.cat((right[..., :-1], torch.zeros_like(right[..., -1:])), -1)


def _shifted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs).roll(1, -1)


def _narrowed(narrow: torch.dtype, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*(_rounded(each, narrow) for each in args), **kwargs)


def _rounded(argument: Any, narrow: torch.dtype) -> Any:
    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return argument
    coarse = argument.detach().to(narrow).to(argument.dtype)
    # Gradients as if nothing had been rounded.
    return argument + (coarse - argument.detach())
