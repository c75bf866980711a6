"""Canary of torch_internals/boolean_views.py."""

from __future__ import annotations

import importlib
import inspect

import torch

from compilefarm.torch_internals.boolean_views import keeping_booleans_binary

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
