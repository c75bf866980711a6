"""Canaries of torch_internals.booleans.py."""

from __future__ import annotations

import importlib
import inspect

import torch

from compilefarm.torch_internals.booleans import bytes_at, keeping_booleans_binary

CPP = importlib.import_module("torch._inductor.codegen.cpp")


def test_bits_of_bytes_are_taken_for_booleans() -> None:
    scalars, vectors = CPP.CppOverrides, CPP.CppVecOverrides
    before = scalars.to_dtype_bitcast, vectors.to_dtype_bitcast
    assert list(inspect.signature(before[0]).parameters) == ["x", "dtype", "src_dtype"]
    assert before[0]("byte", torch.bool, torch.uint8) == "c10::bit_cast<bool>(byte)"
    source = inspect.getsource(vectors._scalarize)
    assert "def _scalarize(cls, scalar_func):" in source
    assert 'scalar_func.__name__ == "to_dtype_bitcast"' in source
    with keeping_booleans_binary():
        assert scalars.to_dtype_bitcast("byte", torch.bool, torch.uint8) == "(c10::bit_cast<uint8_t>(byte) != 0)"
        assert scalars.to_dtype_bitcast("x", torch.float, torch.int32) == before[0]("x", torch.float, torch.int32)
        assert vectors.to_dtype_bitcast is not before[1]
    assert (scalars.to_dtype_bitcast, vectors.to_dtype_bitcast) == before


def test_booleans_are_loaded_as_they_lie_in_memory() -> None:
    kernel, vectors = CPP.CppKernel, CPP.CppVecKernel
    loads = kernel.load, vectors._get_vec_load_line, vectors._load_or_store_non_contiguous
    assert list(inspect.signature(loads[0]).parameters) == ["self", "name", "index"]
    source = inspect.getsource(loads[0])
    assert 'line = f"{var}[{cexpr_index(index)}]"' in source
    assert 'csevar.update_on_args("load", (self, name, index), {})' in source
    assert list(inspect.signature(loads[1]).parameters) == ["self", "var", "index", "dtype", "load_mask"]
    spread = ["self", "var", "index", "dtype", "buffer", "store_value", "accu_store"]
    assert list(inspect.signature(loads[2]).parameters) == spread
    assert bytes_at("in_ptr0") == "reinterpret_cast<const uint8_t*>(in_ptr0)"
    assert 'f"{var}[{index_c}]"' in inspect.getsource(loads[2])
    assert "super().load(name, index)" in inspect.getsource(vectors.load)
    assert "_get_vec_load_line(loadbuf, 0, dtype)" in inspect.getsource(CPP.CppTile2DKernel.load)
    with keeping_booleans_binary():
        assert kernel.load is not loads[0]
    assert (kernel.load, vectors._get_vec_load_line, vectors._load_or_store_non_contiguous) == loads
