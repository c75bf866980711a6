"""Some programs of each library through the codec; `python -m tests.wild` has all of them compiled by a farm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .pods import Pods
from .program import Compiler, Lacking, Program
from .report import has_fault, share_served, write_markdown
from .run import Row, run_through_codec
from .table import PROGRAMS, USUAL

# Libraries warn as they please.
pytestmark = pytest.mark.filterwarnings("default")

# A tenth of the table: those that had been refused, one of each kind, and of torch's own those that take no time.
CHOSEN = (
    ("transformers", "gpt2"),
    ("transformers", "deberta_v2"),
    ("transformers", "vit"),
    ("transformers", "bert classified"),
    ("diffusers", "unet, timesteps"),
    ("diffusers", "flux, blocks"),
    ("timm", "test_resnet"),
    ("torchvision", "squeezenet1_1"),
    ("torchao", "int8 weights and activations"),
    ("nested", "residual block, training"),
    ("nested", "made of rows and offsets"),
    *(
        ("torch", name)
        for name in (
            *("complex products", "steps by name", "combinations", "powers of steps", "windows of one memory"),
            *("mixture", "short-time Fourier transform", "multivariate normal", "two losses", "vmap of vmap", "jvp"),
            *("gradients scaled by a hook", "floats of floats", "floats that decide", "linearize", "tangent kernel"),
            *("hessian", "NumPy", "sgd", "asgd", "radam", "adamw, foreach", "muon"),
        )
    ),
)


def _run(run: Any, **flags: Any) -> Row:
    program = Program(name="tried", run=run, **flags)
    return run_through_codec(program, library="none", device=torch.device("cpu"))


@pytest.mark.parametrize(("library", "name"), CHOSEN, ids=map(" ".join, CHOSEN))
def test_all_graphs_of_a_program_are_served_and_right(library: str, name: str) -> None:
    row = run_through_codec(PROGRAMS[library][name], library=library, device=torch.device("cpu"))
    if row.skipped:
        pytest.skip(row.skipped)
    assert not row.error
    assert not row.wrong
    assert not row.refused


def test_a_tenth_of_the_table_is_tried() -> None:
    assert len(set(CHOSEN)) * 10 >= sum(len(PROGRAMS[library]) for library in PROGRAMS if library != USUAL)


def test_a_program_that_computes_something_else_when_compiled_is_wrong() -> None:
    row = _run(lambda compiler: torch.ones(2) * (1.0 if compiler.backend is None else 1.01))
    assert row.wrong
    assert has_fault(row)


@pytest.mark.parametrize(("off", "is_right"), [(1.5, True), (3.0, False), (float("nan"), False)])
def test_a_result_may_be_twice_as_far_from_a_reference_as_the_uncompiled_one(off: float, is_right: bool) -> None:
    def run(compiler: Compiler) -> torch.Tensor:
        compiler(lambda x: x.sin())(torch.ones(3))
        return torch.full((2,), 1.001 if compiler.backend is None else 1.0 + off * 1e-3)

    row = _run(run, reference=lambda _: torch.ones(2, dtype=torch.float64))
    assert row.is_right is is_right


def test_a_program_of_which_nothing_is_captured_is_wrong_unless_it_says_why() -> None:
    def uncompiled(_: Compiler) -> torch.Tensor:
        return torch.ones(2)

    assert has_fault(_run(uncompiled))
    told = _run(uncompiled, uncaptured="it compiles nothing")
    assert not has_fault(told)
    assert "none captured: it compiles nothing" in write_markdown([told])


def test_a_program_of_which_something_is_captured_after_all_is_wrong() -> None:
    row = _run(lambda compiler: compiler(lambda x: x.sin())(torch.ones(3)), uncaptured="it compiles nothing")
    assert has_fault(row)


def test_a_program_that_raises_is_no_end_of_the_run() -> None:
    row = _run(lambda compiler: torch.ones(2) @ torch.ones(3))
    assert "RuntimeError" in row.error
    assert has_fault(row)


def test_a_program_whose_library_lacks_something_is_skipped() -> None:
    def run(_: Compiler) -> None:
        raise Lacking("no such model")

    row = _run(run)
    assert row.skipped == "no such model"
    assert not has_fault(row)


def test_a_program_that_dynamo_alone_fails_on_is_skipped() -> None:
    def breaking(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    row = _run(lambda compiler: compiler(breaking, fullgraph=True)(torch.ones(3)))
    assert "without a farm" in row.skipped


def test_a_program_that_fails_with_a_farm_alone_is_no_skipped_one() -> None:
    compilers = []

    def run(compiler: Compiler) -> Any:
        compilers.append(compiler)
        if len(compilers) == 2:
            raise RuntimeError("with the farm")
        return torch.ones(3)

    row = _run(run)
    assert "with the farm" in row.error
    assert not row.skipped


def test_a_refused_graph_is_counted_with_its_reason() -> None:
    row = _run(lambda compiler: compiler(lambda x: x.sin())(torch.ones(3)))
    refused = Row(library="none", name="refused", graphs=1, refused=["bypass, input: it is one of two"])
    assert (row.graphs, row.served) == (1, 1)
    assert share_served([row, refused]) == 0.5
    assert "| bypass, input: it is one of two |" in write_markdown([refused])


def test_a_pod_that_ends_is_told_with_its_last_words() -> None:
    (row,) = Pods(device="cpu", way="codec").rows("timm", ["no such program"])
    assert "KeyError: 'no such program'" in row.error
