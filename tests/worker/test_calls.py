"""Programs whose graphs call what few others do go all the way from a pod to a pod, and are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, jacrev, vmap
from torch.signal import windows

from tests.worker.single_process import GraphReport, Make, Outcome, SingleProcessFarm, compiled, decomposed

_X = torch.linspace(-2, 2, 64).view(8, 8)
_Y = torch.linspace(-1, 3, 48).view(6, 8)

# Called with tensors of different sizes, which differ from call to call.
_OF_SIZES: Mapping[str, Callable[..., Any]] = {
    "tensor of a size": lambda x: x * torch.tensor(x.shape[0]),
    "tensor of sizes": lambda x: x.sum() * torch.tensor([[x.shape[0], 3], [2, x.shape[1]]], dtype=torch.float64),
    "rounded": lambda x: x * round(x.shape[0] / 3),
    "rounded to a digit": lambda x: x * round(x.shape[0] / 7, 1),
    "window of a size": lambda x: windows.hann(x.shape[0])[:, None] * x,
}
_WINDOWS: Mapping[str, Mapping[str, Any]] = {
    "bartlett": {}, "blackman": {"sym": False}, "cosine": {}, "exponential": {"tau": 2.0}, "gaussian": {"std": 2.0},
    "general_cosine": {"a": [0.46, 0.23, 0.31]}, "general_hamming": {"alpha": 0.6}, "hamming": {}, "hann": {},
    "kaiser": {"beta": 9.0}, "nuttall": {"dtype": torch.float64},
}  # fmt: skip


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


def _write_data(x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x.data.sum() + x


def _compute_with_numpy(x: torch.Tensor) -> torch.Tensor:
    a = x.numpy()
    scaled = (np.sin(a) * a + 1).sum(axis=0).astype(np.float64).reshape(2, -1)
    mixed = np.einsum("ij,kj->ik", a, a) / np.linalg.norm(a) + np.where(a > 0, a, 0)[: a.shape[0]]
    return torch.from_numpy(mixed).sum() + torch.from_numpy(scaled.T)


_OTHERS: Mapping[str, Callable[..., Any]] = {
    "gradient of a gradient": grad(lambda x: grad(_cubes)(x).sum()),
    "gradients of gradients by rows": vmap(grad(lambda x: grad(_cubes)(x).sum())),
    "Jacobian of a Jacobian": lambda x: jacrev(jacrev(torch.sin))(x[0]),
    "narrowed from a tensor on": lambda x: torch.narrow(x, 0, x[0, 0].to(torch.int64) + 4, 2) * 2,
    "data": _write_data,
    "NumPy": _compute_with_numpy,
}


def _reports(
    program: Callable[..., Any], *inputs: torch.Tensor, make: Make = decomposed, **options: Any
) -> Sequence[GraphReport]:
    """What became of the graphs of a program, called with each input; results are those of the program itself."""
    farm = SingleProcessFarm(make=make)
    torch.compiler.reset()
    through_farm = torch.compile(program, backend=farm.backend, **options)
    for given in inputs:
        theirs, own = given.clone(), given.clone()
        torch.testing.assert_close(through_farm(theirs), program(own))
        torch.testing.assert_close(theirs, own)
    return farm.reports


def _outcomes(reports: Sequence[GraphReport]) -> dict[str, Outcome]:
    return {report.message: report.outcome for report in reports}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", _OF_SIZES)
def test_sizes_that_differ(name: str) -> None:
    reports = _reports(_OF_SIZES[name], _X, _Y, dynamic=True)
    assert _outcomes(reports) == {"": Outcome.RIGHT}


@pytest.mark.parametrize("name", _WINDOWS)
def test_windows(name: str) -> None:
    reports = _reports(lambda x: x * getattr(windows, name)(8, **_WINDOWS[name]), _X)
    assert _outcomes(reports) == {"": Outcome.RIGHT}


@pytest.mark.parametrize("name", _OTHERS)
def test_others(name: str) -> None:
    assert _outcomes(_reports(_OTHERS[name], _X)) == {"": Outcome.RIGHT}


@pytest.mark.parametrize("name", ["svd_lowrank", "pca_lowrank"])
def test_decompositions_that_draw_are_sent(name: str) -> None:
    farm = SingleProcessFarm(make=decomposed)
    torch.compiler.reset()
    # Of rank one, whatever is drawn.
    given = torch.outer(torch.arange(1.0, 9.0), torch.arange(1.0, 6.0))
    _, values, _ = torch.compile(lambda x: getattr(torch, name)(x, q=2, niter=1), backend=farm.backend)(given)
    _, own, _ = getattr(torch, name)(given, q=2, niter=1)
    torch.testing.assert_close(values, own, atol=1e-3, rtol=1e-3)
    assert [report.outcome for report in farm.reports] == [Outcome.UNSEEN]


@pytest.mark.compiles
def test_programs_of_numpy_are_saved() -> None:
    # torch/_functorch/_aot_autograd/autograd_cache.py saves none that call what it does not know.
    assert _outcomes(_reports(_compute_with_numpy, _X, make=compiled)) == {"": Outcome.RIGHT}


@pytest.mark.compiles
def test_kernels_with_rounded_sizes_are_written() -> None:
    # What writes such expressions lies outside of Inductor (torch/utils/_sympy/printers.py), and C++ rounds by lrint.
    reports = _reports(_OF_SIZES["rounded"], _X, _Y, make=compiled, dynamic=True)
    assert _outcomes(reports) == {"": Outcome.RIGHT}
