"""Programs that are recorded as CUDA graphs when they are called, as verifications run them.

torch runs such a program three ways: the first call warms up, the second records, later ones replay. Results of a call
lie in memory that the next one writes to, and static inputs are read where they were when it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compilefarm.graph.leaves import leaf_of

# The first call warms up, the second records, and the last replays.
CALLS = 3


class CudaGraphProgram:
    """A program whose static inputs stay at their addresses.

    Args:
        program: the program.
        static_inputs: numbers of the inputs that have to be at the same addresses at each call.
    """

    def __init__(self, program: Callable[..., Any], *, static_inputs: Sequence[int]) -> None:
        self._program = program
        self._kept: dict[int, torch.Tensor | None] = dict.fromkeys(static_inputs)

    def place(self, inputs: Sequence[Any]) -> list[Any]:
        """Returns the inputs, static ones copied to where they were at the call before."""
        return [self._place(number, given) if number in self._kept else given for number, given in enumerate(inputs)]

    def _place(self, number: int, given: torch.Tensor) -> torch.Tensor:
        kept = self._kept[number]
        if kept is None or kept.shape != given.shape:
            self._kept[number] = given
            return given
        with torch.no_grad():
            kept.copy_(given)
        leaf_of(kept).grad = None
        return kept

    def __call__(self, *inputs: Any) -> list[Any]:
        torch.compiler.cudagraph_mark_step_begin()
        # Copies, since the next call writes to the memory of these.
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in self._program(*inputs)]


def placed(program: Callable[..., Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Returns the inputs at the addresses where the program needs them."""
    return program.place(inputs) if isinstance(program, CudaGraphProgram) else inputs
