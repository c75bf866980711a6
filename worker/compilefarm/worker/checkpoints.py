"""Activation checkpoints of a graph that eager runs."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from compilefarm.core.in_place import may_write_in_place
from compilefarm.graph.targets import higher_order_operators, nodes_of


def run_checkpoints_as_compiled(graph_module: GraphModule) -> None:
    """Has every checkpoint of a graph draw the same random numbers again, and write to what it writes to once.

    Torch's operator for checkpoints is made to be compiled, and leaves the state of generators alone
    (torch/_higher_order_ops/wrap.py: tag_activation_checkpoint_impl): run as it is, dropout within has wrong gradients.
    A compiled program computes again what it needs and writes nothing then. The operator runs the whole checkpoint
    again: running statistics of a batch norm move twice, and what was saved before a write is refused.
    """
    operator = higher_order_operators().get("tag_activation_checkpoint")
    for node in [node for node in nodes_of(graph_module) if node.target is operator]:
        node.target = _run
        node.graph.owning_module.recompile()


def _run(graph_module: GraphModule, *inputs: Any, **options: Any) -> Any:
    if any(map(may_write_in_place, nodes_of(graph_module))):
        return graph_module(*inputs)
    return checkpoint(graph_module, *inputs, **{**options, "use_reentrant": False})
