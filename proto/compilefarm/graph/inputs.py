"""Synthetic inputs: tensors that look as a job says, with elements that exercise its graph without breaking it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compilefarm.core.expressions import check_symbols
from compilefarm.graph.decode import decode_input
from compilefarm.graph.symbols import Symbols
from compilefarm.v1.job_pb2 import Job

# So many numbers are drawn for a tensor; a larger one repeats them. To draw a model's weights anew for every run took
# most of a check. It is a prime, so that what repeats falls together with no row and no block of a kernel.
DRAWN = 65_537


def random_inputs(job: Job, *, seed: int) -> list[torch.Tensor | int]:
    """Real tensors for the inputs of a job, in shape, strides, storage offset, dtype, device and requires_grad.

    Sizes and integers that differ from call to call are what the job's hints say.

    Integers are zero, so that indices stay valid. Booleans are true, so that attention masks leave something to attend
    to. Floats of one dimension lie between 0.5 and 1.5: they are scales, biases and variances, of which some have to be
    positive. Others are normal, over the square root of the last size where there are two dimensions or more, so that
    a deep network keeps its magnitudes in half precision.

    Args:
        job: a job whose inputs decode_job took.
        seed: equal seeds give equal elements.

    Raises:
        InvalidRequest: an input is malformed.
    """
    generator = torch.Generator().manual_seed(seed)
    check_symbols(job)
    symbols = Symbols(hints=tuple(job.hints), values=tuple(job.hints))
    inputs = [decode_input(given, number=number, symbols=symbols) for number, given in enumerate(job.inputs)]
    for given in inputs:
        if isinstance(given, torch.Tensor):
            _fill(given, generator=generator)
    return inputs


def restore_integers(inputs: Sequence[torch.Tensor | int]) -> None:
    """Gives integers and booleans the elements again that random_inputs gave them.

    A graph that counts its calls in an input would leave the bounds of what it indexes by that. Floats that were
    written to are as good as new ones.
    """
    for given in inputs:
        if isinstance(given, torch.Tensor) and not (given.is_floating_point() or given.is_complex()):
            _fill(given, generator=torch.Generator())


def _fill(tensor: torch.Tensor, *, generator: torch.Generator) -> None:
    with torch.inference_mode(False), torch.no_grad():
        # What expand() repeats is written once.
        once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]
        if once.dtype == torch.bool:
            once.fill_(True)
        elif once.is_floating_point() or once.is_complex():
            drawn = _draw(once, generator=generator).to(once.device)
            times = -(-once.numel() // max(drawn.numel(), 1))
            once.copy_(drawn.repeat(times)[: once.numel()].view(once.shape))
        else:
            once.zero_()


def _draw(tensor: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """Elements for a tensor, as many as are drawn; on the CPU, so that every device gets the same."""
    count = min(tensor.numel(), DRAWN)
    # Narrow types have no random numbers of their own; they are rounded from these.
    source = torch.complex64 if tensor.is_complex() else torch.float32
    if tensor.dim() < 2:
        elements = torch.rand(count, generator=generator, dtype=source) + 0.5
    else:
        elements = torch.randn(count, generator=generator, dtype=source) / max(tensor.shape[-1], 1) ** 0.5
    return elements.to(tensor.dtype)
