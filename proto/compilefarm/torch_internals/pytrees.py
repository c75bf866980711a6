"""Values nested in lists, tuples, dictionaries and whatever else torch knows to take apart."""

from __future__ import annotations

from torch.utils._pytree import tree_iter as iterate_leaves  # torch/utils/_pytree.py
from torch.utils._pytree import tree_map as map_leaves

__all__ = ["iterate_leaves", "map_leaves"]
