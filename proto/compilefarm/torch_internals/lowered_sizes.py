"""Sizes and dtypes of what Inductor makes of a graph's nodes, beside those that the nodes were checked with.

Inductor replaces parts of a graph by others (torch/_inductor/fx_passes), and some of its patterns look at less than
they rely on, such as dtypes alone. What takes the place of a node can have other sizes then. Nodes behind it were
checked with the sizes before, and their kernels read and write with either.

Of some nodes nothing is said: graphs within the graph, assertions, and the last of the tokens that keep effects in
order. No node takes memory of theirs. A node of which some is taken, and nothing is said, is told of, too. Graphs that
are made while the one around them is changed, such as the bodies of a loop that was a scan, are looked at afterwards
alone.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch

# Is told of a node that is not made as it was checked: its name, what it was, and what it is made.
DifferenceWatcher = Callable[[str, str, str], None]
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


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
        before.update((node, _value_of(node)) for node in graph.graph.nodes)
        return change(graph, *args, **kwargs)

    def lower_node(self: Any, node: Any) -> Any:
        if node.target is torch.ops.higher_order.invoke_subgraph:
            called, _, *given = torch.fx.map_arg(node.args, self.env.__getitem__)
            taken = [each.meta.get("val") for each in called.graph_module.graph.find_nodes(op="placeholder")]
            _compare(taken, given, sizes=self.sizevars, name=str(node), watcher=watcher)
        result = lower(self, node)
        made = self.graph_outputs if node.op == "output" else _taken(node, result)
        known = [said for said in (_value_of(node), before.get(node)) if said is not None]
        # What no node takes harms none: of an assertion torch 2.11 returns the condition, whatever was said.
        for said in known or [None] * bool(node.users):
            _compare(said, made, sizes=self.sizevars, name=str(node), watcher=watcher)
        return result

    with (
        mock.patch.object(compiling, "_recursive_post_grad_passes", change_graph),
        mock.patch.object(lowering, "run_node", lower_node),
    ):
        yield


def _value_of(node: Any) -> Any:
    """What is said of a node; None if nothing is."""
    if node.op != "output":
        return node.meta.get("val")
    results = node.args[0] if isinstance(node.args[0], list | tuple) else node.args
    return [each.meta.get("val") if isinstance(each, torch.fx.Node) else each for each in results]


def _taken(node: Any, made: Any) -> Any:
    """What is made of a node, without results that no node takes: what oneDNN works in is said to be empty."""
    if not isinstance(made, list | tuple) or any(user.target is not operator.getitem for user in node.users):
        return made
    taken = {user.args[1] for user in node.users}
    return [each if place in taken else None for place, each in enumerate(made)]


def _compare(said: Any, made: Any, *, sizes: Any, name: str, watcher: DifferenceWatcher) -> None:
    if isinstance(made, list | tuple):
        several = said if isinstance(said, list | tuple) else ()
        # Of attention results are left out that nothing is made of; whatever else would take one does not compile.
        for place, each in enumerate(made):
            _compare(several[place] if place < len(several) else None, each, sizes=sizes, name=name, watcher=watcher)
        return
    size = made.maybe_get_size() if hasattr(made, "maybe_get_size") else None
    if size is None:
        is_right = made is None or not isinstance(said, torch.Tensor)
    elif isinstance(said, torch.Tensor):
        is_right = made.get_dtype() is said.dtype and _are_equal(size, said.shape, sizes=sizes)
    else:
        is_right = isinstance(said, _NUMBERS) and len(size) == 0
    if not is_right:
        watcher(name, _shown(said), type(made).__name__ if size is None else f"{made.get_dtype()}{list(size)}")


def _shown(said: Any) -> str:
    if isinstance(said, torch.Tensor):
        return f"{said.dtype}{list(said.shape)}"
    return "nothing" if said is None else type(said).__name__


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
