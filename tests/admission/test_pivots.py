"""Pivots are inputs of a graph, or of a factorization in it: kernels swap rows by them, and believe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import trace
from compilefarm.torch_internals.pytrees import tensors_in
from compilefarm.worker.synthetic import ATTEMPTS, inputs_of
from tests.worker.verifying import checked, encoded_of

_A, _B = torch.rand(2, 3, 3) + 3 * torch.eye(3), torch.rand(2, 3, 2)
_LU, _PIVOTS = torch.linalg.lu_factor(_A)
_LD, _LD_PIVOTS, _ = torch.linalg.ldl_factor_ex(_A @ _A.mT)
_TALL = torch.rand(5, 3)
# As requests may say it; for most of it pods do not ask.
_solve, _unpack = torch.ops.aten.linalg_lu_solve.default, torch.ops.aten.lu_unpack.default


def _solved(a: Tensor, b: Tensor) -> Tensor:
    factors, pivots = torch.linalg.lu_factor(a)
    return torch.linalg.lu_solve(factors, pivots, b)


def _solved_symmetric(a: Tensor, b: Tensor) -> Tensor:
    factors, pivots = torch.linalg.ldl_factor(a @ a.mT)
    return torch.linalg.ldl_solve(factors, pivots, b)


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (_solved, (_A, _B)),
        (_solved_symmetric, (_A, _B)),
        (lambda lu, at, b: torch.linalg.lu_solve(lu, at, b, adjoint=True), (_LU, _PIVOTS, _B)),
        (lambda b, lu, at: torch.lu_solve(b, lu, at), (_B, _LU, _PIVOTS)),
        (lambda at, lu, b: torch.linalg.lu_solve(lu, at.detach().contiguous(), b), (_PIVOTS, _LU, _B)),
        (lambda lu, at: torch.lu_unpack(lu, at)[0], (_LU, _PIVOTS)),
        (lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)), (_TALL,)),
        (torch.linalg.ldl_solve, (_LD, _LD_PIVOTS, _B)),
        (lambda a: torch.geqrf(a), (_TALL,)),
    ],
    ids=["lu", "ldl", "input", "by another name", "view", "unpacked", "of a tall matrix", "input of ldl", "qr"],
)
def test_pivots_that_come_as_they_were_made_are_taken(program: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    encoded = encoded_of(program, *inputs)
    for given, expected in zip(_results(_decoded(encoded)(*inputs)), _results(program(*inputs)), strict=True):
        torch.testing.assert_close(given, expected)
    assert checked(encoded, lambda graph: graph).compared


def test_pivots_are_not_frozen() -> None:
    # Factors would be swapped by synthetic ones, which are zeros, while the graph is compiled.
    with torch.no_grad():
        encoded = encoded_of(torch.linalg.ldl_solve, _LD, _LD_PIVOTS, _B)
    for given in encoded.job.inputs:
        given.is_frozen = True
    assert list(decode(encoded.job, blobs=encoded.blobs, admitted=Admitted()).frozen_inputs) == [0, 2]


def test_a_farm_tries_pivots_that_swap_no_row() -> None:
    encoded = encoded_of(torch.linalg.lu_solve, _LU, _PIVOTS, _B)
    decoded = decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())
    for attempt in range(ATTEMPTS):
        made = inputs_of(encoded.job, decoded, first_seed=0, attempt=attempt)()
        pivots = [each for each in made if isinstance(each, Tensor) and each.dtype == torch.int32]
        assert [each.tolist() for each in pivots] == [[[1, 2, 3]] * 2]


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (lambda lu, at, b: _solve(lu, at + 1, b), (_LU, _PIVOTS, _B)),
        (lambda lu, at, b: _solve(lu, at.flip(-1), b), (_LU, _PIVOTS, _B)),
        (lambda lu, at, b: _solve(lu, at[:, 1:4], b), (_LU, torch.ones(2, 4).int(), _B)),
        (lambda lu, at, b: _solve(lu, at.view(torch.int32), b), (_LU, torch.ones(2, 3), _B)),
        (lambda lu, b: _solve(lu, torch.full((2, 3), 9, dtype=torch.int32), b), (_LU, _B)),
        (lambda lu, at, b: _solve(lu, at.fill_(1000), b), (_LU, _PIVOTS.clone(), _B)),
        (lambda lu, a, b: _solve(lu, torch.linalg.lu_factor(a)[1].add_(9), b), (_LU, _A, _B)),
        # Each is a row of five, and there are three.
        (lambda lu, a, b: _solve(lu, torch.linalg.lu_factor(a)[1], b), (_LU[0], _TALL, _B[0])),
        # Some are negative.
        (lambda lu, a, b: _solve(lu, torch.linalg.ldl_factor(a)[1], b), (_LU, _A, _B)),
        (lambda lu, at: _unpack(lu, at)[0], (_LU, _PIVOTS[:, :2].contiguous())),
        (lambda lu, at: _unpack(lu, at)[0], (_LU, torch.ones(2, 9).int())),
        (lambda lu, at: _unpack(lu, at)[0], (_LU, _PIVOTS[0].contiguous())),
    ],
    ids=["sum", "order", "part", "bits", "constant", "written", "written later", "tall", "ldl", "few", "many", "batch"],
)
def test_others_are_refused(program: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    with pytest.raises((Bypass, InvalidRequest)):
        _decoded(trace(program, *inputs).encode())


def _solved_by_others(factors: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    pivots.fill_(1000)
    found: Tensor = _solve(factors, pivots, b)
    return found


@pytest.mark.parametrize(("program", "inputs"), [
    (_solved_by_others, (_LU, _PIVOTS.clone(), _B)),
    (lambda lu, at: _unpack(lu, at)[0], (_LU, torch.ones(2, 9).int())),
    (lambda lu, a, b: _solve(lu, torch.linalg.lu_factor(a)[1], b), (_LU[0], _TALL, _B[0])),
])  # fmt: skip
def test_what_a_pod_would_ask_for_a_farm_refuses(program: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    """A pod looks at the way of pivots alone; the farm has the last word."""
    encoded = trace(program, *inputs).encode()
    with pytest.raises(InvalidRequest, match="pivots"):
        _decoded(encoded)


def _decoded(encoded: EncodedJob) -> torch.fx.GraphModule:
    return decode(encoded.job, blobs=encoded.blobs, admitted=Admitted()).graph_module


def test_a_factorization_by_reflections_lies_where_it_does_uncompiled() -> None:
    for matrix in (_TALL, _TALL.mT, _A):
        encoded = encoded_of(torch.geqrf, matrix)
        nodes = _decoded(encoded).graph.find_nodes(op="call_function", target=torch.geqrf)
        for fake, real in zip(nodes[0].meta["example_value"], torch.geqrf(matrix), strict=True):
            assert (fake.shape, fake.stride()) == (real.shape, real.stride())


def _results(given: object) -> list[Tensor]:
    return [*tensors_in(given)]
