"""Attention in graphs of plain tensors, as AOTAutograd leaves it: a kernel that was chosen in the pod.

Where a graph asks for no more than its result, the choice is left to the farm, as it is for other graphs. Gradients
need what the kernel has kept; of that seeds, which nothing writes without dropout, are left out.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.operators import OpOverload, schema_of

_aten = torch.ops.aten
# aten/src/ATen/native/transformers/attention.cpp: scaled_dot_product_attention
_CHOSEN = frozenset(
    f"aten::_scaled_dot_product_{name}"
    for name in ("cudnn_attention", "efficient_attention", "flash_attention", "fused_attention_overrideable")
)
_GRADIENTS = frozenset(f"{name}_backward" for name in _CHOSEN)
_SEEDS = ("philox_seed", "philox_offset")


def leave_choice_open(graph_module: GraphModule) -> None:
    """Puts `scaled_dot_product_attention` in the place of what it came down to on a GPU, where no more is used.

    Args:
        graph_module: a traced graph, whose nodes have meta["val"]; changed in place.
    """
    for node in list(graph_module.graph.nodes):
        results = [user for user in node.users if user.users]
        if _name_of(node) in _CHOSEN and results and all(map(_is_first, results)):
            with graph_module.graph.inserting_before(node):
                attention = _whole(graph_module, node)
            attention.meta = dict(results[0].meta)
            for result in results:
                result.replace_all_uses_with(attention)
            for unused in (*node.users, node):
                graph_module.graph.erase_node(unused)
    graph_module.recompile()


def leave_out_seeds(graph_module: GraphModule) -> None:
    """Gives gradients of attention without dropout zeros for seeds, which they do not read.

    A kernel leaves seeds as they lie in memory then, and no two runs of a forward pass would return the same.

    Args:
        graph_module: a traced graph of both passes, whose nodes have meta["val"]; changed in place.
    """
    for node in list(graph_module.graph.nodes):
        if _name_of(node) not in _GRADIENTS or _given(node).get("dropout_p") != 0.0:
            continue
        for seed in {value for name, value in _given(node).items() if name in _SEEDS and isinstance(value, Node)}:
            with graph_module.graph.inserting_before(node):
                zeros = _zeros_like(graph_module, node, seed)
            node.replace_input_with(seed, zeros)
            if not seed.users:
                graph_module.graph.erase_node(seed)
    graph_module.recompile()


def _name_of(node: Node) -> str:
    return node.target.name() if isinstance(node.target, OpOverload) else ""


def _given(node: Node) -> dict[str, Any]:
    assert isinstance(node.target, OpOverload)
    return named_arguments(schema_of(node.target), node.args, node.kwargs)


def _is_first(node: Node) -> bool:
    return node.target is operator.getitem and node.args[1] == 0


def _whole(graph_module: GraphModule, node: Node) -> Node:
    given = _given(node)
    query, key = given["query"], given["key"]
    # Several heads of queries share those of keys only where that is said.
    is_shared = query.meta["val"].shape[1] != key.meta["val"].shape[1]
    return graph_module.graph.call_function(
        _aten.scaled_dot_product_attention.default,
        (
            query,
            key,
            given["value"],
            given.get("attn_bias"),
            given.get("dropout_p", 0.0),
            given.get("is_causal", False),
        ),
        {"scale": given.get("scale"), **({"enable_gqa": True} if is_shared else {})},
    )


def _zeros_like(graph_module: GraphModule, gradients: Node, seed: Node) -> Node:
    looks, query = seed.meta["val"], _given(gradients)["query"].meta["val"]
    options = {"dtype": torch.int64, "device": query.device}
    zeros = graph_module.graph.call_function(_aten.zeros.default, (list(looks.shape),), options)
    # Which pass a node belongs to is noted beside it (torch/_functorch/partitioners.py).
    zeros.meta = {**gradients.meta, "val": query.new_zeros(looks.shape, dtype=torch.int64)}
    return zeros
