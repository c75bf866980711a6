"""The results of a run of a program: outputs, inputs that it wrote to, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch

from compilefarm.graph.leaves import leaf_of
from compilefarm.worker.cuda_graphs import placed
from compilefarm.worker.inputs import draw_gradient

Results = Mapping[str, Any]

# Inputs up to this size are compared with what eager leaves of them, whether they may be written to or not.
_KEPT_BYTES = 1 << 28


def call(program: Any, inputs: Sequence[Any]) -> list[Any]:
    """Runs a program to its end, and gives its outputs. Gradients are wanted afterwards as they were before."""
    # A graph may leave them switched off, as a model does that calls torch.set_grad_enabled.
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        outputs = program(*inputs)
    if any(isinstance(given, torch.Tensor) and given.is_cuda for given in inputs):
        torch.cuda.synchronize()
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def run(program: Any, inputs: Sequence[Any], *, seed: int, written: Set[int]) -> dict[str, Any]:
    """Runs a program with torch's generators at a seed, and its backward.

    Args:
        program: the program.
        inputs: the inputs, to which it may write.
        seed: seed of torch's generators.
        written: numbers of the inputs that it is known to write to.
    """
    inputs = placed(program, inputs)
    torch.manual_seed(seed)
    return results_of(call(program, inputs), inputs, written=written)


def results_of(outputs: Sequence[Any], inputs: Sequence[Any], *, written: Set[int]) -> dict[str, Any]:
    """Returns outputs, gradients, and inputs that may have been written to, by name.

    Large inputs, and parameters, are looked at where something is known to write to them: a second copy of each would
    not fit onto a GPU.
    """
    left = {f"output {number}": output for number, output in enumerate(outputs)}
    for number, given in enumerate(inputs):
        if isinstance(given, torch.Tensor):
            is_small = not given.requires_grad and given.nbytes <= _KEPT_BYTES
            if is_small or number in written:
                left[f"input {number} afterwards"] = given
    # Also what is handed through: of what eager returns as it is, a program may return a copy.
    tracked = [out for out in outputs if isinstance(out, torch.Tensor) and is_tracked(out)]
    if tracked:
        torch.autograd.backward(tracked, [draw_gradient(out, number=number) for number, out in enumerate(tracked)])
        for number, given in enumerate(inputs):
            if isinstance(given, torch.Tensor) and leaf_of(given).grad is not None:
                left[f"gradient of input {number}"] = leaf_of(given).grad
    return left


def is_tracked(output: torch.Tensor) -> bool:
    """Whether a backward through an output says something of the program.

    Without gradients the only outputs that want them are inputs that eager hands through, as a dropout of nothing does
    with a weight. What torch compiles gives their values alone.
    """
    return output.requires_grad and (torch.is_grad_enabled() or output.grad_fn is not None)
