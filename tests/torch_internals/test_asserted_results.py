"""Canaries of torch_internals/asserted_results.py."""

from __future__ import annotations

import importlib
import inspect

import torch

from compilefarm.torch_internals.asserted_results import keeping_results_as_said

IR = importlib.import_module("torch._inductor.ir")


def test_results_are_asserted_in_one_place() -> None:
    assert_sizes = IR.ExternKernel.codegen_size_asserts
    assert list(inspect.signature(assert_sizes).parameters) == ["self", "wrapper"]
    source = inspect.getsource(assert_sizes)
    for name in ("self.get_size()", "self.get_op_name()", "V.graph.wrapper_code.codegen_shape_tuple"):
        assert name in source, name
    # What is alone, what is one of several, and what is allocated.
    for kernel in (IR.FallbackKernel, IR.MultiOutput):
        assert "self.codegen_size_asserts(wrapper)" in inspect.getsource(kernel.codegen), kernel
    wrapper = importlib.import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    assert "node.codegen_size_asserts(self)" in inspect.getsource(wrapper.generate_extern_kernel_alloc)
    assert "device_types" in inspect.getsource(importlib.import_module("torch._inductor.graph").GraphLowering)
    with keeping_results_as_said():
        assert IR.ExternKernel.codegen_size_asserts is not assert_sizes
    assert IR.ExternKernel.codegen_size_asserts is assert_sizes


def test_nothing_asserts_a_result_elsewhere_or_leaves_it_out() -> None:
    kernels = [each for each in vars(IR).values() if inspect.isclass(each) and issubclass(each, IR.ExternKernel)]
    assert [each for each in kernels if "codegen_size_asserts" in vars(each)] == [IR.ExternKernel]
    # Graphs within graphs, of whose results each is asserted where it is made, and what is no tensor.
    left_out = inspect.getsource(IR).count("skip_size_stride_alignment_checks=True")
    assert left_out == (1 if torch.__version__.startswith("2.11.") else 2)


def test_torch_asserts_nothing_of_what_has_no_elements() -> None:
    torch._C._dynamo.guards.assert_size_stride(torch.empty(0), (5,), (1,), "an operator")
