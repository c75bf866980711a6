"""Values nested in lists, tuples, dictionaries and whatever else torch knows to take apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._ordered_set import OrderedSet  # torch/utils/_ordered_set.py
from torch.utils._pytree import TreeSpec  # torch/utils/_pytree.py
from torch.utils._pytree import tree_iter as iterate_leaves  # torch/utils/_pytree.py
from torch.utils._pytree import tree_map as map_leaves

__all__ = ["WITH_REGISTRIES", "OrderedSet", "TreeSpec", "iterate_leaves", "map_leaves", "map_tensors", "tensors_in"]

# Modules whose functions take apart what programs have registered with them. The second is imported where it is used.
WITH_REGISTRIES = frozenset({"torch.utils._pytree", "torch.utils._cxx_pytree"})


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors within a value."""
    return (leaf for leaf in iterate_leaves(value) if isinstance(leaf, torch.Tensor))


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same value with what a function makes of each tensor in its place."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)
