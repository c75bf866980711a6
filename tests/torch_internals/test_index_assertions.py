"""Canaries of torch_internals/index_assertions.py."""

from __future__ import annotations

import importlib
import inspect

import pytest

from compilefarm.torch_internals.index_assertions import keeping_index_assertions, wrap_integers

PROPAGATION = importlib.import_module("torch._inductor.index_propagation")
HOW = ["check", "wrap_neg"]
BUILDER = importlib.import_module("torch._inductor.cpp_builder")


def test_assertions_are_left_out_in_two_places() -> None:
    folding = PROPAGATION.IndexPropagation
    assert list(inspect.signature(folding.indirect_indexing).parameters) == ["self", "index", "size", *HOW]
    source = inspect.getsource(folding)
    for name in (
        "self.shape_env.var_to_range",
        "self.var_to_range = ",
        "self.indirect_var_ranges = ",
        "def unwrap(",
        "def statically_true(",
    ):
        assert name in source, name
    assert "is_symbolic" in inspect.getsource(PROPAGATION.IndexPropVar)
    proxy = importlib.import_module("torch._inductor.codegen.common").CSEProxy
    assert list(inspect.signature(proxy.indirect_indexing).parameters) == ["self", "var", "size", *HOW]
    generate = proxy.indirect_indexing
    assert "var.bounds" in inspect.getsource(generate)
    with keeping_index_assertions():
        assert proxy.indirect_indexing is not generate
    assert proxy.indirect_indexing is generate


def test_what_a_graph_selects_by_is_not_asserted() -> None:
    wrapper = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    select = wrapper.codegen_dynamic_select_index
    assert list(inspect.signature(select).parameters) == ["self", "node", "clamp"]
    assert "raise" not in inspect.getsource(select)
    assert list(inspect.signature(wrapper.codegen_python_sizevar).parameters) == ["self", "x", "simplify"]
    source = inspect.getsource(importlib.import_module("torch._inductor.ir").DynamicSelectStorageOffset)
    for name in ("self.index = ", "self.size = "):
        assert name in source, name
    with keeping_index_assertions():
        assert wrapper.codegen_dynamic_select_index is not select
    assert wrapper.codegen_dynamic_select_index is select


def test_regions_are_asserted_to_begin_within_an_image() -> None:
    lowering = importlib.import_module("torch._inductor.lowering")
    begin = lowering._fractional_pooling_offsets
    assert list(inspect.signature(begin).parameters) == ["samples", "in_sz", "out_sz", "kernel_sz", "dim", "ndims"]
    source = inspect.getsource(begin)
    # The size of a region stands in nothing else.
    assert source.count("kernel_sz") == 4
    assert "in_sz - kernel_sz" in source
    assert "ops.indirect_indexing(ops.where(mask, seq_i, diff), sympy.sympify(in_sz))" in source
    with keeping_index_assertions():
        assert lowering._fractional_pooling_offsets is not begin
    assert lowering._fractional_pooling_offsets is begin


def test_integers_wrap_in_what_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is for the rest of a process.
    monkeypatch.setattr(BUILDER, "_get_optimization_cflags", BUILDER._get_optimization_cflags)
    wrap_integers()
    assert "fwrapv" in BUILDER.get_cpp_options(cpp_compiler="g++", do_link=False)[2]
