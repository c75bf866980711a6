"""What a graph calls comes down to operators that no graph names: they are held to a list, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torchgen
from torch.fx import Graph, GraphModule
from torch.utils.checkpoint import checkpoint

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import reached_operators, targets
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.admitted_operators import is_admitted
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.encode import encode_job
from compilefarm.graph.operators import base_of, operators_of_torch
from compilefarm.graph.reached_operators import is_reached
from compilefarm.graph.testing import capture, fixed_environment, trace
from compilefarm.v1.job_pb2 import Job

LOGS, TARGETS, LENGTHS = torch.ones(10, 2, 5), torch.ones(2, 4, dtype=torch.long), ((10, 10), (4, 4))
X = torch.ones(4, 4)
# Derivatives that the formulas of admitted operators name, and that are of tensors of other kinds.
NOT_OF_THESE = {"_nested_select_backward", "_nested_sum_backward"}


def job_calling(function: Callable[..., object]) -> Job:
    graph = Graph()
    graph.call_function(function, (graph.placeholder("x"), graph.placeholder("targets"), *LENGTHS))
    graph.output(())
    module = GraphModule(torch.nn.Module(), graph)
    return encode_job(module, [LOGS, TARGETS], options={}, environment=fixed_environment).job


def decoded(job: Job, *, operators: frozenset[str] = frozenset()) -> None:
    with apply_ambient(job.ambient):
        decode(job, blobs={}, admitted=Admitted(operators=operators))


@pytest.fixture
def by_mistake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a function may be called that comes down to an operator which is not admitted."""
    tables = (targets._torch_functions, targets._torch_names)
    monkeypatch.setattr(targets, "_UNHELD", frozenset())
    for table in tables:
        table.cache_clear()
    yield
    monkeypatch.undo()
    for table in tables:
        table.cache_clear()


@pytest.mark.usefixtures("by_mistake")
def test_a_function_brings_in_no_operator_that_is_not_admitted() -> None:
    job = job_calling(torch.nn.functional.ctc_loss)
    with pytest.raises(InvalidRequest, match=r"_ctc_loss\.default: no graph may call it"):
        decoded(job)


def transformed(x: torch.Tensor) -> torch.Tensor:
    return torch.prelu(x, torch.full((1,), 0.5))


def within(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(transformed, x, use_reentrant=False)
    return result


def differentiated(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda given: transformed(given).sum())(x)


def mapped(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(transformed)(x)


@pytest.mark.parametrize("model", [transformed, within, differentiated, mapped])
def test_wherever_an_operator_comes_from_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, model: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    job = capture(model, X, fullgraph=True).encode().job
    decoded(job)
    monkeypatch.setattr(reached_operators, "_REACHED", reached_operators._REACHED - {"aten::_prelu_kernel"})
    with pytest.raises(InvalidRequest, match=r"_prelu_kernel\.default: no graph may call it"):
        decoded(job)


@pytest.fixture(scope="module")
def library() -> Iterator[str]:
    """An operator of another library, without a kernel: it comes down to one of torch's that no graph may call."""
    made = torch.library.Library("walls", "FRAGMENT")
    made.define("factors(Tensor x) -> Tensor")
    made.impl("factors", lambda x: torch.geqrf(x)[0], "CompositeImplicitAutograd")
    yield "walls::factors"
    # It is there as long as this is.
    del made


def direct(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.walls.factors(x) + 1  # type: ignore[no-any-return]


def indirect(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(direct, x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [direct, indirect])
def test_what_an_operator_of_a_library_calls_is_its_own_affair(
    library: str, model: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    job = trace(model, X, fullgraph=True).encode().job
    decoded(job, operators=frozenset({library, f"{library}.default"}))
    with pytest.raises(InvalidRequest, match="'walls::factors' is not among the functions"):
        decoded(job)


def test_but_not_what_stands_beside_it(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = trace(lambda x: transformed(direct(x)), X, fullgraph=True).encode().job
    monkeypatch.setattr(reached_operators, "_REACHED", reached_operators._REACHED - {"aten::_prelu_kernel"})
    with pytest.raises(InvalidRequest, match=r"_prelu_kernel\.default: no graph may call it"):
        decoded(job, operators=frozenset({library, f"{library}.default"}))


def test_every_derivative_of_an_admitted_operator_may_be_reached() -> None:
    known = {base_of(name) for name in operators_of_torch() if name.startswith("aten::")}
    formulas = Path(torchgen.__file__).parent / "packaged" / "autograd" / "derivatives.yaml"
    entries = re.split(r"^- name: ", formulas.read_text(), flags=re.MULTILINE)[1:]
    missing = set()
    for entry in entries:
        name, _, rest = entry.partition("(")
        if not is_admitted(base_of(f"aten::{name}")):
            continue
        called = {word.removesuffix("_symint") for word in re.findall(r"(\w+)\(", rest.partition("\n")[2])}
        steps = {word for word in called & known if "backward" in word and not is_admitted(word)}
        missing |= {word for word in steps - NOT_OF_THESE if not is_reached(f"aten::{word}")}
    assert len(entries) > 500
    assert missing == set()
