"""torch.einsum of more than two tensors: a library decides while a graph is compiled in which order it contracts."""

from __future__ import annotations

from functools import cache

import torch
from torch.fx import Node

# torch/functional.py: einsum
CONTRACTION_LIBRARY = "opt_einsum"
# How it finds an order (opt_einsum/paths.py: _PATH_OPTIONS). Torch checks none of them; timm.optim sets "auto-hq".
STRATEGIES = (
    *("auto", "auto-hq", "branch-1", "branch-2", "branch-all", "dp", "dynamic-programming", "eager", "greedy"),
    *("opportunistic", "optimal"),
)


def is_contraction(node: Node) -> bool:
    """Whether a node multiplies more than two tensors in an order that has to be found."""
    operands: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), operands.append)
    return getattr(node.target, "__name__", "") == "einsum" and len(operands) > 2


def uses_contraction_library() -> bool:
    """Whether the library finds that order in this process; without it tensors are multiplied from left to right."""
    return _has_library() and bool(torch.backends.opt_einsum.enabled)


def contraction_strategy() -> str:
    """How the library finds that order in this process; "off" where it does not."""
    return str(torch.backends.opt_einsum.strategy) if uses_contraction_library() else "off"


@cache
def _has_library() -> bool:
    """Whether torch has found the library, as it looks for when it is imported. Asking again takes ten times as long as
    the rest.
    """
    return bool(torch.backends.opt_einsum.is_available())
