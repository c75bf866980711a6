"""Canaries of torch_internals/decompositions.py."""

from __future__ import annotations

import importlib

import torch
from torch._inductor.pattern_matcher import Arg, CallFunction, PatternMatcherPass, register_graph_pattern

from compilefarm.torch_internals.decompositions import (
    InductorPatterns,
    Table,
    decomposition_tables,
    inductor_patterns,
    inductor_tables,
    patterns_in,
)


def test_decompositions_are_kept_by_kind() -> None:
    tables = decomposition_tables()
    assert tables.keys() == {"post_autograd", "pre_autograd", "meta"}
    assert torch.ops.aten.gelu_backward.default in tables["post_autograd"]


def test_inductors_tables_are_seen_once_they_are_imported() -> None:
    importlib.import_module("torch._inductor.lowering")
    tables: dict[str, Table] = dict(inductor_tables())
    assert torch.ops.aten.add.Tensor in tables["torch._inductor.lowering"]
    assert torch.ops.aten.gelu_backward.default in tables["torch._inductor.decomposition"]


def test_patterns_are_seen_once_they_are_imported() -> None:
    module = importlib.import_module("torch._inductor.fx_passes.post_grad")
    assert any(True for _ in patterns_in(module))
    assert {name for name, _ in inductor_patterns()} >= {"torch._inductor.fx_passes.post_grad"}


def test_patterns_that_are_added_are_found_with_those_that_were_there() -> None:
    module = importlib.import_module("torch._inductor.fx_passes.post_grad")
    patterns = InductorPatterns()
    before = patterns.entries()
    assert before == [entry for _, entry in inductor_patterns()]
    further = PatternMatcherPass()
    module.pass_patterns.append(further)
    try:
        wanted = CallFunction(torch.ops.aten.mm.default, Arg(), Arg())
        register_graph_pattern(wanted, pass_dict=further)(lambda match, x, y: None)
        assert len(patterns.entries()) == len(before) + 1
    finally:
        module.pass_patterns.remove(further)
    assert patterns.entries() == before
