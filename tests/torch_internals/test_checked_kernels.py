"""Kernels that reach beyond their tensors by elements that are no numbers are not called with such by a worker."""

from __future__ import annotations

import pytest

from compilefarm.torch_internals.checked_kernels import check_kernels
from tests.forked_pods import ForkedPods

# In a process of its own: what is checked stays so, and without checks it ends there.
_CHECKED = """
import torch
from compilefarm.core.starts import StartClock, process_began_seconds
from compilefarm.graph.replacements import find_replacement
from compilefarm.torch_internals.checked_kernels import CHECK
from compilefarm.worker.child import _preload

_preload(verifier=True, device=torch.device("cpu"), clock=StartClock(began_seconds=process_began_seconds()))
print("once", CHECK() is CHECK(), sep=": ")
BESIDE = torch.ops.aten._grid_sampler_2d_cpu_fallback_backward
AS_IT_IS = torch.ops.aten.grid_sampler_2d_backward

def samples(value):
    torch.manual_seed(0)
    places = torch.rand(1, 4, 4, 2)
    places.view(-1)[::3] = value
    return torch.rand(1, 2, 4, 4), torch.rand(1, 2, 3, 3), places

for padding in (1, 2):
    for value in (0.5, float("nan"), float("inf"), -float("inf")):
        given = (*samples(value), 0, padding, False)
        expected = BESIDE(*given)
        for wanted in ((True, True), (False, True)):
            of_image, of_places = AS_IT_IS(*given, wanted)
            same = torch.allclose(of_places, expected[1], atol=1e-5) and (
                torch.allclose(of_image, expected[0], atol=1e-5) if wanted[0] else of_image is None
            )
            print(f"gradient {padding} {value} {wanted}", same, sep=": ")
matrix = torch.eye(3)
print("eigenvalues", torch.linalg.eigvals(2 * matrix).real.tolist(), sep=": ")
for name, out in (("made", None), ("given", torch.empty(3, dtype=torch.complex64))):
    try:
        torch.linalg.eigvals(matrix * float("nan"), out=out)
    except RuntimeError as error:
        print(f"eigenvalues {name}", error, sep=": ")
try:
    # Of what has nothing of the batch torch 2.11 looks at no place.
    torch.vmap(lambda x: torch.ones(2), out_dims=7)(torch.ones(3))
except IndexError as error:
    print("place", error, sep=": ")
print("replacement", find_replacement(), sep=": ")
"""


@pytest.fixture(scope="module")
def told(forks: ForkedPods) -> dict[str, str]:
    done = forks.execute(_CHECKED.replace("CHECK", check_kernels.__name__))
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_gradients_of_samples_are_those_of_the_kernel_that_asks_for_each_pixel(told: dict[str, str]) -> None:
    found = [same for name, same in told.items() if name.startswith("gradient")]
    assert found == ["True"] * 16


def test_eigenvalues_of_what_is_no_number_are_refused(told: dict[str, str]) -> None:
    assert told["eigenvalues"] == "[2.0, 2.0, 2.0]"
    assert "infs or NaNs" in told["eigenvalues made"]
    assert "infs or NaNs" in told["eigenvalues given"]


def test_they_are_checked_once(told: dict[str, str]) -> None:
    assert told["once"] == "True"


def test_a_worker_does_not_take_the_checks_for_a_librarys(told: dict[str, str]) -> None:
    assert told["replacement"] == "None"


def test_a_batch_is_put_where_there_is_a_place(told: dict[str, str]) -> None:
    assert "out of range" in told["place"]
