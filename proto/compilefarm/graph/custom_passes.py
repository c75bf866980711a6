"""Passes of users and libraries that change a graph before its gradients are traced (`pre_grad_custom_pass`): torchao's
quantizer for x86 sets one for the whole process.

They are functions of the pod, and are run there; what they leave is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch.fx import Graph, GraphModule
from torch.fx.passes.tools_common import stable_topological_sort

from compilefarm.graph.rewriting import copied
from compilefarm.torch_internals.settings import INDUCTOR

PRE_GRAD = "pre_grad_custom_pass"


def with_custom_passes(graph_module: GraphModule, options: Mapping[str, object]) -> GraphModule:
    """The graph that such passes make of one, which stays as it is; the graph itself where there are none.

    Inductor runs them behind passes of its own that leave most graphs alone
    (torch/_inductor/fx_passes/pre_grad.py: pre_grad_passes).

    Args:
        graph_module: as Dynamo captured it.
        options: Inductor options from mode= and options= of torch.compile, by dotted name.
    """
    passes = _passes_of(options.get(PRE_GRAD, INDUCTOR.pre_grad_custom_pass))
    if not passes:
        return graph_module
    changed = copied(graph_module)
    for each in passes:
        each(changed.graph)
    stable_topological_sort(changed)
    changed.recompile()
    return changed


def _passes_of(value: object) -> Sequence[Callable[[Graph], object]]:
    """The passes that a value of the setting stands for: one, or several since torch 2.15."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)  # type: ignore[return-value]  # callables
