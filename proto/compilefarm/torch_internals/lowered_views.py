"""Views by sizes and strides, as Inductor makes them of buffers.

What was a part of a larger tensor on fake tensors may be a buffer of its own by then: Inductor takes parts of what was
concatenated for what it was concatenated of (torch/_inductor/fx_passes/post_grad.py: cat_splitwithsizes_replace).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sympy
import torch

# Is told of a view: how many bytes it reaches over, how many its buffer has, and whether it stays within; None if that
# is not known.
ViewWatcher = Callable[[Any, Any, bool | None], None]


@contextlib.contextmanager
def watching_views(watcher: ViewWatcher, *, guards_sizes: bool) -> Iterator[None]:
    """Has `watcher` called with each view that Inductor makes by sizes and strides.

    Args:
        watcher: is told of each.
        guards_sizes: whether a view that stays within at the sizes at hand, and perhaps not at others, makes the
            program take no sizes at which it would not.
    """
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    unwatched = lowering.as_strided

    def watched(*args: Any, **kwargs: Any) -> Any:
        view = unwatched(*args, **kwargs)
        _look(view.data, watcher, guards_sizes=guards_sizes)
        return view

    overloads = {torch.ops.aten.as_strided: watched, torch.ops.aten.as_strided.default: watched}
    with mock.patch.object(lowering, "as_strided", watched), mock.patch.dict(lowering.lowerings, overloads):
        yield


def _look(view: Any, watcher: ViewWatcher, *, guards_sizes: bool) -> None:
    graph = importlib.import_module("torch._inductor.virtualized").V.graph
    buffer = view.data.data
    reach = view.layout.storage_size() * view.layout.dtype.itemsize
    # In its own elements, with what Inductor has made room for beyond them.
    room = graph.get_allocation_storage_size(buffer) * buffer.get_layout().dtype.itemsize
    sizes = graph.sizevars
    if sizes.statically_known_leq(reach, room):
        return watcher(reach, room, True)
    if sizes.statically_known_lt(room, reach):
        return watcher(reach, room, False)
    stays_within = guards_sizes and sizes.evaluate_expr(sympy.Le(reach, room), fallback_value=False)
    return watcher(reach, room, True if stays_within else None)
