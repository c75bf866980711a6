"""Canaries of torch_internals/fake_tensors.py, and of what tensors of torch are by identity."""

from __future__ import annotations

import torch

from compilefarm.graph import tracing
from compilefarm.torch_internals.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    constants_of,
    forget_constants,
    is_dense,
    leaving_fake_mode,
)


def test_fake_tensors_can_be_left_for_a_while() -> None:
    with FakeTensorMode():
        assert isinstance(torch.ones(2), FakeTensor)
        with leaving_fake_mode():
            assert torch.ones(2).tolist() == [1.0, 1.0]
        assert isinstance(torch.ones(2), FakeTensor)
    with tracing.faking(), tracing.not_faking():
        assert torch.ones(2).tolist() == [1.0, 1.0]


def test_tensors_with_gaps_are_not_dense() -> None:
    x = torch.ones(4, 6)
    assert is_dense(x)
    assert is_dense(x.t())
    assert not is_dense(x[:, ::2])
    assert not is_dense(x[:1].expand(4, 6))


def test_what_torch_knows_of_elements_can_be_forgotten() -> None:
    with FakeTensorMode():
        number = torch.tensor([3])
        alias = number.view(1)
        assert [constant.tolist() for constant in constants_of([{"x": alias * 2}, 1])] == [[6]]
        assert constants_of([number, torch.ones(2)]) == []
        forget_constants((alias,))
        assert constants_of(number) == constants_of(alias) == []
        assert constants_of(torch.tensor(1)) != []


def test_operators_without_a_fake_form_can_be_refused() -> None:
    # graph/decode.py switches it while a graph runs.
    mode = FakeTensorMode(allow_fallback_kernels=False)
    assert mode.allow_fallback_kernels is False
    mode.allow_fallback_kernels = True


def test_storages_keep_their_python_object() -> None:
    # torch/csrc/StorageMethods.cpp: what tells inputs that share memory.
    tensor = torch.ones(4)
    assert tensor.untyped_storage() is tensor[1:].untyped_storage()
