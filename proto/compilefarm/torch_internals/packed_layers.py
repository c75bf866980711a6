"""Layers whose weights Inductor packs for oneDNN when they are frozen (torch/_inductor/fx_passes/mkldnn_fusion.py).

Kernels for packed weights go through the memory of a bias as if each element had its own, one after the other, which
the operators do not that they stand in for. Other layers are left to these.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default


def require_dense_operands() -> None:
    """For the rest of this process, has weights packed of layers alone whose biases have no gaps. Before the first
    compile: that registers the patterns.
    """
    add_check(importlib.import_module("torch._inductor.fx_passes.mkldnn_fusion"), _are_dense)


def add_check(module: Any, check: Callable[[Any], bool]) -> None:
    """Has patterns that a module of Inductor registers for frozen graphs, from now on, match only where a check passes,
    too; once for each module.

    Args:
        module: registers them by its own `register_freezing_graph_pattern`.
        check: is given what was matched.
    """
    register = module.register_freezing_graph_pattern
    if getattr(register, "compilefarm", False):
        return

    def register_checked(pattern: Any, extra_check: Callable[[Any], bool] = lambda _: True, **given: Any) -> Any:
        return register(pattern, extra_check=lambda match: extra_check(match) and check(match), **given)

    register_checked.compilefarm = True  # type: ignore[attr-defined]
    module.register_freezing_graph_pattern = register_checked


def _are_dense(match: Any) -> bool:
    is_recurrent = match.output_node().target is _RECURRENT
    return all(tensor.is_contiguous() for tensor in _operands(match) if is_recurrent or tensor.dim() <= 1)


def _operands(match: Any) -> Iterator[torch.Tensor]:
    """Yields what nodes that were matched take of others."""
    taken = {each for node in match.nodes for each in node.all_input_nodes} - {*match.nodes}
    yield from (value for node in taken if isinstance(value := node.meta.get("val"), torch.Tensor))
