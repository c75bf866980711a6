"""Canaries of torch_internals/lowered_views.py."""

from __future__ import annotations

import importlib
import inspect

import torch

from compilefarm.torch_internals.lowered_views import watching_views

LOWERING = importlib.import_module("torch._inductor.lowering")


def test_views_by_strides_are_made_in_one_place() -> None:
    aten = torch.ops.aten
    made = LOWERING.as_strided
    assert {LOWERING.lowerings[each] for each in (aten.as_strided, aten.as_strided.default)} == {made}
    source = inspect.getsource(LOWERING)
    assert source.count("return TensorBox(ir.ReinterpretView(data=storage, layout=new_layout))") == 1
    for caller in ("as_strided_", "as_strided_copy", "as_strided_scatter"):
        assert "as_strided(" in inspect.getsource(inspect.unwrap(getattr(LOWERING, caller))).partition(":\n")[2], caller
    with watching_views(lambda *_: None, guards_sizes=True):
        assert LOWERING.as_strided is LOWERING.lowerings[aten.as_strided.default] is not made
    assert LOWERING.as_strided is LOWERING.lowerings[aten.as_strided.default] is made


def test_what_a_buffer_has_room_for() -> None:
    graph = importlib.import_module("torch._inductor.graph").GraphLowering
    assert list(inspect.signature(graph.get_allocation_storage_size).parameters) == ["self", "node"]
    for name in ("statically_known_leq", "statically_known_lt"):
        sizes = importlib.import_module("torch._inductor.sizevars").SizeVarAllocator
        assert list(inspect.signature(getattr(sizes, name)).parameters) == ["self", "left", "right"]
