"""The check refuses no right program of mixed precision, and finds the mistakes of wrong ones."""

from __future__ import annotations

import pytest
import torch

from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.worker.comparison import VerificationFailed
from tests.ends import shared_out
from tests.worker.detection import attempts, table_of
from tests.worker.fused import fused
from tests.worker.inductor import checked_compile, encoded
from tests.worker.programs import right_programs
from tests.worker.verifying import checked, encoded_of

_NAMES = [program.name for program in right_programs()]
_NARROW = ("bf16", "fp16", "autocast")
# One of each kind of output; all of them are tried with `-m corpus`.
_SAMPLE = (
    "mlp bf16, float output",
    "mlp autocast fp16",
    "mlp bf16, top",
    "decoder bf16, tokens",
    "decoder autocast, loss",
    "attention probabilities bf16, float output",
    "training mlp autocast",
    "training decoder bf16",
)


def test_there_are_enough_programs_of_mixed_precision() -> None:
    assert sum(any(word in name for word in _NARROW) for name in _NAMES) >= 40


@pytest.mark.parametrize("name", shared_out(_SAMPLE))
def test_a_program_that_rounds_less_than_eager_passes(name: str) -> None:
    (program,) = (each for each in right_programs() if each.name == name)
    assert checked(encoded_of(program.model, *program.inputs, trains=program.trains), fused).compared


@pytest.mark.corpus
@pytest.mark.parametrize("name", _NAMES)
def test_all_programs_that_round_less_than_eager_pass(name: str) -> None:
    test_a_program_that_rounds_less_than_eager_passes(name)


# `python -m tests.worker` tries all of them.
_COMPILED = (
    *("mlp bf16, float output", "decoder bf16, tokens", "training mlp autocast", "mlp, medium precision"),
    *("training batch norms of images", "training batch norm autocast"),
)


@pytest.mark.compiles
@pytest.mark.parametrize("name", shared_out(_COMPILED))
def test_what_inductor_makes_of_a_program_passes(name: str) -> None:
    (program,) = (each for each in right_programs() if each.name == name)
    assert checked_compile(encoded(program)).compared


def test_what_comes_of_narrow_floats_is_held_to_their_precision() -> None:
    """As a float32 output of a bfloat16 model: 0.003 of 0.6 off from eager, and nearer to the truth."""
    weight, x = torch.rand(64, 64).bfloat16(), torch.rand(8, 64).bfloat16()
    found = checked(encoded_of(lambda weight, x: (x @ weight @ weight).float(), weight, x), fused)
    assert found.referenced == 1
    assert found.error < found.eager_error < found.allowed_error


# Programs in which mistakes are made, of those that give floats.
_MISTAKEN = ("mlp", "mlp bf16", "decoder bf16, float logits")


@pytest.mark.parametrize("name", _MISTAKEN)
def test_mistakes_are_found(name: str) -> None:
    (program,) = (each for each in right_programs() if each.name == name)
    tried = list(attempts(program, each=2))
    assert len(tried) >= 6
    assert all(attempt.refusal for attempt in tried), table_of(tried)


@pytest.mark.corpus
def test_all_mistakes_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    tried = [attempt for program in right_programs() for attempt in attempts(program, each=2)]
    with capsys.disabled():
        print(f"\n{table_of(tried)}")
    assert len(tried) >= 200
    assert all(attempt.refusal for attempt in tried)


def _handed_through() -> EncodedJob:
    # Eager returns its input where nothing is dropped, and Inductor a copy of it.
    x = torch.randn(8, requires_grad=True)
    return encoded_of(lambda x: torch.nn.functional.dropout(x, 0.0, training=True), x, trains=True)


def test_what_only_eager_hands_through_has_its_gradient() -> None:
    assert checked(_handed_through(), lambda _: lambda x: [x.clone()]).compared


def test_a_wrong_gradient_of_what_eager_hands_through_is_found() -> None:
    with pytest.raises(VerificationFailed, match="gradient of input 0"):
        checked(_handed_through(), lambda _: lambda x: [2 * x - x.detach()])
