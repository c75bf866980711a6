"""Canaries of torch_internals/masked_loads.py."""

from __future__ import annotations

import importlib
import inspect

from compilefarm.torch_internals.masked_loads import keeping_masked_loads_short

CPP = importlib.import_module("torch._inductor.codegen.cpp")


def test_masked_loads_do_not_end_with_their_loop() -> None:
    kernel = CPP.CppVecKernel
    load = kernel._get_vec_load_line
    assert list(inspect.signature(load).parameters) == ["self", "var", "index", "dtype", "load_mask"]
    source = inspect.getsource(load)
    assert "{load_mask_str}.template loadu<{cpp_type},{num_vectors}>({loadbuf})" in source
    assert "self.num_elems" in source
    assert list(inspect.signature(kernel._get_mask_type).parameters) == ["self", "dtype"]
    assert "self.tail_size = tail_size" in inspect.getsource(kernel.__init__)
    assert callable(CPP.cexpr_index)
    with keeping_masked_loads_short():
        assert kernel._get_vec_load_line is not load
    assert kernel._get_vec_load_line is load
