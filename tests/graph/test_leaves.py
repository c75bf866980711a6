"""Inputs that operators have made: a graph may write to them where it could not write to a leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.core.keys import key_of
from compilefarm.graph.decode import decode_input, decode_job
from compilefarm.graph.leaves import as_result, is_result, leaf_of
from compilefarm.graph.testing import capture, trace
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.v1.graph_pb2 import Input, TensorSpec
from compilefarm.worker.inputs import random_inputs


def result() -> torch.Tensor:
    return torch.ones(3, 4, requires_grad=True) * 1


def doubling(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).sin()


def test_gradients_end_in_the_leaf_after_a_write() -> None:
    x = as_result(torch.full((3,), 2.0))
    assert is_result(x)
    assert not x._is_view()
    x.mul_(2)
    (x**2).sum().backward()
    assert leaf_of(x).grad.tolist() == [16.0] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(4, 3).t(),
        lambda: torch.ones(20)[2:14:2],
        lambda: torch.ones(3, 1).expand(3, 4),
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.empty(0, 3),
    ],
)
@pytest.mark.parametrize("fake", [False, True])
def test_all_else_of_the_tensor_stays(make: Callable[[], torch.Tensor], fake: bool) -> None:
    with FakeTensorMode() if fake else torch.no_grad():
        given = make()
        made = as_result(given)
        assert type(made) is type(given)
        for of in (lambda t: t.shape, torch.Tensor.stride, lambda t: t.dtype, torch.Tensor.storage_offset):
            assert of(made) == of(given)


def test_a_job_says_it_and_every_run_has_it() -> None:
    job = capture(doubling, result()).encode().job
    assert [given.is_result for given in job.inputs] == [True]
    decoded = decode_job(job, blobs={})
    assert all(map(is_result, decoded.inputs))
    assert decoded.written_inputs == {0}
    (x,) = random_inputs(job, seed=0)
    assert isinstance(x, torch.Tensor)
    before = x.detach().clone()
    decoded.graph_module(x)[0].sum().backward()
    torch.testing.assert_close(leaf_of(x).grad, 2 * (2 * before).cos())


def test_leaves_have_another_key() -> None:
    keys = {key_of(capture(torch.sin, x).encode().job).text for x in (result(), result().detach().requires_grad_())}
    assert len(keys) == 2


def test_what_the_graph_makes_of_an_input_is_not_said_of_it() -> None:
    """An input without gradients has them after the graph has written a result with gradients into it."""

    def filling(cache: torch.Tensor, k: torch.Tensor) -> Any:
        cache[1:] = k
        return cache * 2

    job = trace(filling, torch.zeros(3, 4), torch.ones(2, 4, requires_grad=True)).encode().job
    assert [(given.tensor.requires_grad, given.is_result) for given in job.inputs] == [(False, False), (True, False)]


@pytest.mark.parametrize("given", [{"is_parameter": True}, {}])
def test_what_cannot_be_a_result_is_refused(given: dict[str, bool]) -> None:
    spec = TensorSpec(dtype="float32", requires_grad="is_parameter" in given)
    spec.device.type = "cpu"
    with pytest.raises(InvalidRequest, match="cannot be a result"):
        decode_input(Input(tensor=spec, is_result=True, **given), number=0)
