"""Canaries of torch_internals/masked_assertions.py."""

from __future__ import annotations

import importlib
import inspect

from compilefarm.torch_internals.masked_assertions import keeping_masked_assertions

CPP = importlib.import_module("torch._inductor.codegen.cpp")


def test_masks_of_type_bool_take_assertions_back() -> None:
    kernel = CPP.CppVecKernel
    check = kernel.indirect_assert
    assert list(inspect.signature(check).parameters) == ["self", "var", "lower", "upper", "mask"]
    source = inspect.getsource(check)
    assert "if not var.is_vec:" in source
    assert 'mask = f"({mask}).all_masked()"' in source
    assert "self.tail_size" in source
    common = importlib.import_module("torch._inductor.codegen.common").Kernel
    assert 'cond = f"({cond}) | ~({mask})"' in inspect.getsource(common.indirect_assert)
    assert list(inspect.signature(kernel._get_mask_type).parameters) == ["self", "dtype"]
    assert list(inspect.signature(kernel._get_mask_cast).parameters) == ["self", "mask", "dtype"]
    assert callable(CPP.cexpr_index)
    with keeping_masked_assertions():
        assert kernel.indirect_assert is not check
    assert kernel.indirect_assert is check


def test_what_is_under_a_mask_of_one_element_runs_only_where_it_is_set() -> None:
    source = inspect.getsource(CPP.CppVecOverrides.masked)
    assert 'f"{mask} ? {body_code_vec} : {other_code_vec}"' in source
    assert 'f"{mask} ? {body_code} : {other_code}"' in source
