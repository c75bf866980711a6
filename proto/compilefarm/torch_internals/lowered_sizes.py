"""Sizes and dtypes of what Inductor makes of a graph's nodes, beside those that the nodes were checked with.

Inductor replaces parts of a graph by others (torch/_inductor/fx_passes), and some of its patterns look at less than
they rely on, such as dtypes alone. What takes the place of a node can have other sizes then. Nodes behind it were
checked with the sizes before, and their kernels read and write with either.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch

# Is told of a node that is not made as it was checked: its name, what it was, and what it is made.
DifferenceWatcher = Callable[[str, str, str], None]


@contextlib.contextmanager
def watching_lowered_sizes(watcher: DifferenceWatcher) -> Iterator[None]:
    """Has `watcher` called with each node of a graph that Inductor makes with other sizes, or another dtype, than fake
    tensors have said before and after its passes.
    """
    compiling: Any = importlib.import_module("torch._inductor.compile_fx")
    lowering: Any = importlib.import_module("torch._inductor.graph").GraphLowering
    change, lower = compiling._recursive_post_grad_passes, lowering.run_node
    # By node, which stays the same as long as it computes the same.
    before: dict[Any, Any] = {}

    def change_graph(graph: Any, *args: Any, **kwargs: Any) -> Any:
        before.update(_values_of(graph))
        return change(graph, *args, **kwargs)

    def lower_node(self: Any, node: Any) -> Any:
        result = lower(self, node)
        made = self.graph_outputs if node.op == "output" else result
        for said in (node.meta.get("val"), before.get(node)):
            _compare(said, made, sizes=self.sizevars, name=str(node), watcher=watcher)
        return result

    with (
        mock.patch.object(compiling, "_recursive_post_grad_passes", change_graph),
        mock.patch.object(lowering, "run_node", lower_node),
    ):
        yield


def _values_of(graph: Any) -> Iterator[tuple[Any, Any]]:
    for node in graph.graph.nodes:
        if node.op == "output":
            results = node.args[0] if isinstance(node.args[0], list | tuple) else node.args
            yield node, [each.meta.get("val") if isinstance(each, torch.fx.Node) else each for each in results]
        elif "val" in node.meta:
            yield node, node.meta["val"]


def _compare(said: Any, made: Any, *, sizes: Any, name: str, watcher: DifferenceWatcher) -> None:
    if isinstance(said, list | tuple) and isinstance(made, list | tuple):
        for one, other in zip(said, made, strict=False):
            _compare(one, other, sizes=sizes, name=name, watcher=watcher)
        return
    size = made.maybe_get_size() if hasattr(made, "maybe_get_size") else None
    if size is None or not isinstance(said, torch.Tensor):
        return
    if made.get_dtype() is not said.dtype or not _are_equal(size, said.shape, sizes=sizes):
        watcher(name, f"{said.dtype}{list(said.shape)}", f"{made.get_dtype()}{list(size)}")


def _are_equal(made: Sequence[Any], said: Sequence[Any], *, sizes: Any) -> bool:
    expressions = [each.node.expr if isinstance(each, torch.SymInt) else each for each in said]
    return len(made) == len(said) and all(
        one == other or sizes.statically_known_equals(one, other) or _guarded_equal(one, other, sizes=sizes)
        for one, other in zip(made, expressions, strict=True)
    )


def _guarded_equal(one: Any, other: Any, *, sizes: Any) -> bool:
    """Whether sizes are equal at hand; the program has a guard then that they are. Inductor of torch 2.11 takes a
    symbolic dilation of a convolution for the number that it is, without one (torch/_inductor/kernel/conv.py:
    conv_layout).
    """
    equal: bool = sizes.evaluate_expr(sympy.Eq(one, other), fallback_value=False)
    return equal
