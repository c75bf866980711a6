"""Two pods at one farm that differ in one thing that may decide a result: the second one gets what its own compile
computes.

Workers are in the default state. Graphs are taken apart into Inductor's operators, without kernels of these; where the
states differ most, they are compiled.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache
from torch.nn.functional import scaled_dot_product_attention

from compilefarm.client.local import compile_graph
from compilefarm.core.dynamo_settings import DYNAMO, SYMBOLIC_SHAPES
from compilefarm.core.environments import differences
from compilefarm.core.keys import key_of
from compilefarm.core.treatment import Treatment
from compilefarm.core.variables import MATCHED_NAMES, VARIABLES
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.loader.environment import describe_environment
from tests.ends import shared_out
from tests.worker.decomposition import decompose
from tests.worker.inductor import compiled

from .rows import ROWS, casting, contraction, square
from .test_compiler_settings import other_value

Program = Callable[..., Any]
# Settings of the compiler that decide how numbers are rounded, or drawn.
ROUNDING = (
    "cpp.enable_unsafe_math_opt_flag", "decompose_mem_bound_mm", "emulate_division_rounding",
    "emulate_precision_casts", "fallback_random", "use_fast_math",
)  # fmt: skip
_CONFIGS: Any = {
    "dynamo": torch._dynamo.config,
    "shapes": torch.fx.experimental._config,
    "inductor": torch._inductor.config,
}


def deciding(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Much that states of a process decide: dtypes, orders of products, the smallest numbers, precisions."""
    smallest = torch.full((4,), 1e-40) * 1e20
    made = torch.ones(4) / 3 + torch.arange(4) * 0.1 + torch.tensor(0.7)
    counted = x.new_zeros(4).index_put((x.long().flatten(),), x.flatten(), accumulate=True)
    heads = x.view(1, 1, 4, 4)
    attention = scaled_dot_product_attention(heads, heads, heads)
    return (square(x), casting(x), contraction(x), smallest + x * 1e-30, made * x, counted, attention)


@dataclass(frozen=True, slots=True)
class Difference:
    """What the second pod has that the first has not."""

    enter: Callable[[], AbstractContextManager[object]]


def _patched(config: str, name: str) -> Difference:
    module = _CONFIGS[config]
    return Difference(lambda: module.patch({name: other_value(getattr(module, name))}))


def _bypasses(config: str, table: Any) -> dict[str, Difference]:
    known = _CONFIGS[config]._config
    names = (name for name, (treatment, _) in table.items() if treatment is Treatment.BYPASS and name in known)
    return {f"{config}.{name}": _patched(config, name) for name in names}


@contextmanager
def _variable(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, "default")
        yield


DIFFERENCES = {
    **{name: Difference(row.enter) for name, row in ROWS.items()},
    **{
        name: Difference(functools.partial(_variable, name))
        for name in MATCHED_NAMES
        if "cpu" in VARIABLES[name].devices
    },
    **_bypasses("dynamo", DYNAMO),
    **_bypasses("shapes", SYMBOLIC_SHAPES),
    **{f"inductor.{name}": _patched("inductor", name) for name in ROUNDING if name in _CONFIGS["inductor"]._config},
}
# In these states kernels differ from those of the default.
COMPILED = ("dtype of autocast while it is off", "default dtype")


@functools.cache
def graph() -> CapturedGraph:
    with torch.no_grad():
        return capture(deciding, torch.linspace(0, 3, 16).view(4, 4))


def _decomposed(job: EncodedJob) -> Program:
    return decompose(decode(job.job, blobs=job.blobs, admitted=Admitted()))


class Farm:
    """A worker in the default state, and a store, at which a pod in the default state was the first to ask.

    Args:
        make: what the worker makes of a job.
    """

    def __init__(self, make: Callable[[EncodedJob], Program]) -> None:
        self._make = make
        first = ask()
        self._environment = first.job.environment
        self._asked = {key_of(first.job).text: first}
        self._programs: dict[str, Program] = {}

    def serve(self, job: EncodedJob) -> Program | None:
        """The program of a job, made for who asked first for its key; None if no worker fits."""
        if differences(wanted=job.job.environment, offered=self._environment):
            return None
        key = key_of(job.job).text
        first = self._asked.setdefault(key, job)
        # What no other pod gets shows nothing, and is not made.
        if key not in self._programs:
            with apply_ambient(first.job.ambient):
                self._programs[key] = self._make(first)
        return self._programs[key]


def ask() -> EncodedJob:
    """The request of a pod in the state in which this process is."""
    given = graph()
    return encode_job(given.graph_module, given.example_inputs, options={}, environment=describe_environment)


def results_of(program: Program) -> Sequence[torch.Tensor]:
    results: Sequence[torch.Tensor] = program(*(value.clone() for value in graph().example_inputs))
    return [result.detach().clone() for result in results]


def assert_computed_alike(difference: Difference, farm: Farm, compile_here: Callable[[EncodedJob], Program]) -> None:
    try:
        with difference.enter():
            job = ask()
    except Bypass:
        return
    program = farm.serve(job)
    if program is None:
        return
    with difference.enter():
        ours, own = results_of(program), results_of(compile_here(job))
    torch.testing.assert_close(ours, own, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(scope="module")
def farm() -> Farm:
    return Farm(_decomposed)


@pytest.mark.parametrize("difference", DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_a_pod_that_differs_computes_what_its_own_compile_does(difference: Difference, farm: Farm) -> None:
    assert_computed_alike(difference, farm, _decomposed)


def _compiled_by_worker(job: EncodedJob) -> Program:
    with fresh_cache():
        return compiled(job)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def compiling_farm() -> Farm:
    return Farm(_compiled_by_worker)


def _compiled_here(_: EncodedJob) -> Program:
    given = graph()
    # Torch's own cache does not look at all of a state.
    with fresh_cache():
        return compile_graph(copy.deepcopy(given.graph_module), given.example_inputs, options={})


@pytest.mark.compiles
@pytest.mark.parametrize("name", shared_out(COMPILED))
def test_a_pod_that_differs_computes_what_it_would_compile(name: str, compiling_farm: Farm) -> None:
    assert_computed_alike(DIFFERENCES[name], compiling_farm, _compiled_here)


def test_there_are_enough_differences() -> None:
    assert len(DIFFERENCES) >= 60
