"""What a program makes of weights: once for each set of them, and anew when one was written to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compilefarm.loader.preparation import PreparedProgram
from compilefarm.torch_internals.freezing import ITEM, Preparation, Reference, Step

# `weight.chunk(2)[1] * 3`, which the program takes behind its one other input.
PREPARATION = Preparation(
    weights=[0],
    forms=[(torch.float32, (4,), (1,))],
    steps=[
        Step(operator="aten::chunk", args=[Reference(0), 2]),
        Step(operator=ITEM, args=[Reference(1), 1]),
        Step(operator="aten::mul.Tensor", args=[Reference(2)], kwargs={"other": torch.tensor(3.0)}),
    ],
    results={"constant": Reference(3)},
    sizes=[(2,)],
)


class Seen:
    """A program that adds both, and keeps what it took of weights."""

    def __init__(self, preparation: Preparation = PREPARATION) -> None:
        self.taken: list[torch.Tensor] = []
        self.program = PreparedProgram(self._run, preparation)

    def _run(self, inputs: list[Any]) -> Any:
        x, prepared = inputs
        inputs.clear()
        self.taken.append(prepared)
        return x + prepared

    def __call__(self, weight: torch.Tensor) -> list[float]:
        given: list[Any] = [weight, torch.ones(2)]
        result: list[float] = self.program(given).tolist()
        assert given == []
        return result


def test_what_is_made_of_weights_is_made_once() -> None:
    seen, weight = Seen(), torch.arange(4.0)
    assert seen(weight) == seen(weight) == [7.0, 10.0]
    assert seen.taken[0] is seen.taken[1]


def test_it_is_made_anew_when_a_weight_was_written_to_or_moved() -> None:
    seen, weight = Seen(), torch.arange(4.0)
    seen(weight)
    weight.mul_(2)
    assert seen(weight) == [13.0, 19.0]
    weight.data = torch.ones(4)
    assert seen(weight) == [4.0, 4.0]


def test_models_that_share_a_program_have_results_of_their_own_as_long_as_they_live() -> None:
    seen, first, second = Seen(), torch.arange(4.0), torch.ones(4)
    assert (seen(first), seen(second), seen(first)) == ([7.0, 10.0], [4.0, 4.0], [7.0, 10.0])
    assert seen.taken[0] is seen.taken[2]
    assert len(seen.program._prepared) == 2
    del second
    assert len(seen.program._prepared) == 1


def test_weights_of_inference_mode_are_taken() -> None:
    with torch.inference_mode():
        assert Seen()(torch.arange(4.0)) == [7.0, 10.0]


def test_a_weight_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="was compiled for"):
        Seen()(torch.arange(6.0))


def test_strides_of_dimensions_with_one_element_decide_nothing() -> None:
    # A request says others there than a view has, and so does Inductor.
    steps = [Step(operator="aten::select.int", args=[Reference(0), 0, 0])]
    forms = [(torch.float32, (1, 2), (2, 1))]
    seen = Seen(replace(PREPARATION, forms=forms, steps=steps, results={"constant": Reference(1)}))
    assert seen(torch.ones(1, 2).as_strided((1, 2), (7, 1))) == [2.0, 2.0]
    with pytest.raises(ValueError, match="was compiled for"):
        seen(torch.ones(1, 4)[:, ::2])


def test_where_more_is_made_of_weights_than_the_program_takes_it_is_not_run() -> None:
    # Its kernels have sizes of their own, and would read beyond what was made.
    steps = [Step(operator="aten::_unique2", args=[Reference(0)]), Step(operator=ITEM, args=[Reference(1), 0])]
    seen = Seen(replace(PREPARATION, steps=steps, results={"constant": Reference(2)}))
    assert seen(torch.tensor([1.0, 2.0, 1.0, 2.0])) == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"constant is of \(1,\), and the program was compiled for \(2,\)"):
        seen(torch.ones(4))
