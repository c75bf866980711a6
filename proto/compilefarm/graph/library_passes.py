"""Passes that a library gives Inductor for the whole process when it is imported, and that leave most graphs alone.

What a setting of such a pass says is no part of a request for these.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from typing import Any

from torch.fx import GraphModule, Node

from compilefarm.graph.operators import is_of_torch
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet, schema_of

# By setting: module and name of the pass. It moves operators of quantization before views, in graphs that call some
# (torchao/quantization/pt2e/inductor_passes/x86.py).
_PASSES = {"pre_grad_custom_pass": ("torchao.quantization.pt2e.inductor_passes.x86", "quant_lift_up")}


def passes_without_effect(values: Mapping[str, object], graph_module: GraphModule) -> Set[str]:
    """Names of settings that hold such a pass, for a graph that it leaves as it is.

    Args:
        values: of Inductor's settings, by name.
        graph_module: the graph; those within it count, too.
    """
    known = {name for name, place in _PASSES.items() if values.get(name) is not None and _is_at(place, values[name])}
    modules = (module for module in graph_module.modules() if isinstance(module, GraphModule))
    is_plain = known and all(map(_is_of_torch, (node for module in modules for node in module.graph.nodes)))
    return known if is_plain else frozenset()


def _is_at(place: tuple[str, str], value: object) -> bool:
    """Whether a value is what a module has by a name; objects of classes of its own are copied with the settings."""
    module, name = place
    known = getattr(sys.modules.get(module), name, None)
    return value is known or (type(value) is type(known) and type(known).__module__ == module)


def _is_of_torch(node: Node) -> bool:
    """Whether a node calls no operator of another library, nor one for quantized models."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return is_of_torch(schema_of(target).name)
    return not isinstance(target, OpOverloadPacket) or is_of_torch(name_of_packet(target))
