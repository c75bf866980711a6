"""Freezing: Inductor computes with tensors that a graph holds when it compiles, and makes them part of the program.

No request asks for it: such a program is of one model alone, and torch saves none. Where nothing would be frozen, a
graph is sent as if nobody had asked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import GraphModule

from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.settings import INDUCTOR

FREEZING = "freezing"


def is_frozen(graph_module: GraphModule, options: Mapping[str, object]) -> bool:
    """Whether Inductor would freeze tensors of a graph (torch/_inductor/compile_fx.py: fw_compiler_freezing).

    It does where no gradients are wanted. Dynamo leaves parameters in graphs where the whole process asks for it; an
    option of torch.compile comes too late for that, and parameters are inputs (torch/_dynamo/utils.py:
    is_parameter_freezing).

    Args:
        graph_module: as Dynamo captured it.
        options: Inductor options from mode= and options= of torch.compile, by dotted name.
    """
    is_asked = options.get(FREEZING, INDUCTOR.freezing)
    return bool(is_asked) and not torch.is_grad_enabled() and _holds_tensors(graph_module)


def check_unfrozen(graph_module: GraphModule, options: Mapping[str, object]) -> None:
    """Checks that Inductor would freeze nothing of a graph.

    Raises:
        Bypass: it would.
    """
    if is_frozen(graph_module, options):
        raise Bypass("freezing", "the setting freezing makes the tensors that the graph holds part of its program")


def _holds_tensors(graph_module: GraphModule) -> bool:
    return next(graph_module.parameters(), next(graph_module.buffers(), None)) is not None
