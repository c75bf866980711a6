"""Synthetic inputs: tensors that look as a job says, with elements that exercise its graph without breaking it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set

import torch

from compilefarm.core.expressions import check_symbols
from compilefarm.graph.decode import decode_input
from compilefarm.graph.symbols import Symbols
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.elements import elements_of, mask_of
from compilefarm.worker.fillers import Filler, Kind

# So many numbers are drawn, and repeated: to draw a model's weights anew for every run took most of a check. It is a
# prime, so that what repeats falls together with no row of a tensor and no block of a kernel.
DRAWN = 65_537
_GRADIENT_SEED = 3
# By so many each tensor begins later than the one before, so that no two are alike.
_FURTHER = 7_919
# What is computed in another order differs by so many of the smallest steps of its dtype.
_LAST_BITS = 4
_PIVOTS = Filler(kind=Kind.PIVOTS)


class Noise:
    """Numbers for the inputs of jobs. Equal seeds give equal ones, on every device."""

    def __init__(self, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        # Twice, so that there are enough from wherever a tensor begins.
        self._uniform = (torch.rand(DRAWN, generator=generator, dtype=torch.float32) + 0.5).repeat(2)
        self._normal = torch.randn(DRAWN, generator=generator, dtype=torch.float32).repeat(2)
        self._scaled: dict[int, torch.Tensor] = {}

    def elements(self, tensor: torch.Tensor, *, number: int) -> torch.Tensor:
        """For the input of a number: one-dimensional, of its dtype, as many as it has or DRAWN of them."""
        drawn = self._uniform if tensor.dim() < 2 else self._normal_over_root_of(tensor.shape[-1])
        elements = drawn[_drawn(tensor, number=number)]
        if tensor.is_complex():
            elements = torch.complex(elements, elements.flip(0))
        # Narrow types have no random numbers of their own; they are rounded from these.
        return elements.to(tensor.dtype)

    def uniform(self, tensor: torch.Tensor, *, number: int) -> torch.Tensor:
        """Numbers between 0.5 and 1.5, as many as `elements` gives."""
        return self._uniform[_drawn(tensor, number=number)]

    def signed(self, tensor: torch.Tensor, *, number: int) -> torch.Tensor:
        """The same with either sign."""
        return self.uniform(tensor, number=number).copysign(self._normal[_drawn(tensor, number=number)])

    def _normal_over_root_of(self, size: int) -> torch.Tensor:
        # Kept by size: a model has few, and hundreds of tensors.
        if size not in self._scaled:
            self._scaled[size] = self._normal / max(size, 1) ** 0.5
        return self._scaled[size]


def _drawn(tensor: torch.Tensor, *, number: int) -> slice:
    first = number * _FURTHER % DRAWN
    return slice(first, first + min(tensor.numel(), DRAWN))


@functools.cache
def draw_noise(*, seed: int) -> Noise:
    """The noise of a seed. It is drawn once in a process: that takes as long as all else of making small inputs."""
    return Noise(seed=seed)


def random_inputs(
    job: Job, *, seed: int, fillers: Mapping[int, Filler] | None = None, pivots: Set[int] = frozenset()
) -> list[torch.Tensor | int]:
    """Real tensors for the inputs of a job, in shape, strides, storage offset, dtype, device and requires_grad.

    Sizes and integers that differ from call to call are what the job's hints say.

    Inputs of which nothing is known get elements that do the least harm. Integers are zero, so that indices stay valid.
    Booleans are mostly true, so that attention masks leave something to attend to. Floats of one dimension lie between
    0.5 and 1.5: they are scales, biases and variances, of which some have to be positive. Others are normal, over the
    square root of the last size where there are two dimensions or more, so that a deep network keeps its magnitudes in
    half precision.

    Args:
        job: a job whose inputs decode_job took.
        seed: equal seeds give equal elements.
        fillers: what elements inputs have to have, by their number, as `find_fillers` says. None: nothing is known, and
            booleans are all true.
        pivots: numbers of the inputs by which kernels swap rows. They swap none, whatever is known.

    Raises:
        InvalidRequest: an input is malformed.
    """
    noise = draw_noise(seed=seed)
    check_symbols(job)
    symbols = Symbols(hints=tuple(job.hints), values=tuple(job.hints))
    inputs = [decode_input(given, number=number, symbols=symbols) for number, given in enumerate(job.inputs)]
    for number, given in enumerate(inputs):
        if isinstance(given, torch.Tensor):
            _fill(given, noise=noise, number=number, fillers={number: _PIVOTS} if number in pivots else fillers)
    return inputs


def draw_gradient(output: torch.Tensor, *, number: int) -> torch.Tensor:
    """The gradient that a backward begins with: another one for each element, of both signs.

    Ones would be of no use after a softmax or a norm, whose results have a sum that nothing changes.

    Args:
        output: what is differentiated.
        number: which of them.
    """
    gradient = torch.zeros_like(output, memory_format=torch.contiguous_format, requires_grad=False)
    noise = draw_noise(seed=_GRADIENT_SEED)
    with torch.inference_mode(False), torch.no_grad():
        _repeat(noise.signed(gradient, number=number).to(gradient.device, gradient.dtype), gradient)
    return gradient


def keep_integers(inputs: Sequence[torch.Tensor | int]) -> Callable[[], None]:
    """Gives integers and booleans, whenever it is called, the elements again that they have now.

    A graph that counts its calls in an input would leave the bounds of what it indexes by that. Floats that were
    written to are as good as new ones.
    """
    once = [_written_once(given) for given in inputs if isinstance(given, torch.Tensor) and not _floats(given)]
    kept = [each.clone() for each in once]

    def restore() -> None:
        with torch.inference_mode(False), torch.no_grad():
            for each, elements in zip(once, kept, strict=True):
                each.copy_(elements)

    return restore


def move_by_last_bits(
    inputs: Sequence[torch.Tensor | int], *, seed: int, epsilon: float = 0.0, last_bits: float = _LAST_BITS
) -> None:
    """Makes every float a little larger or smaller, in place: about as much as another order of additions would.

    Args:
        inputs: as random_inputs gives them.
        seed: decides which become larger.
        epsilon: smallest step of what is computed of them, where that is coarser than they are.
        last_bits: how far each is moved, in smallest steps; of less than one, that is the share of those that are moved
            by one.
    """
    for number, given in enumerate(inputs):
        if isinstance(given, torch.Tensor) and _floats(given):
            _move(given, seed=seed + number, epsilon=epsilon, last_bits=last_bits)


def _move(tensor: torch.Tensor, *, seed: int, epsilon: float, last_bits: float) -> None:
    with torch.inference_mode(False), torch.no_grad():
        once = _written_once(tensor)
        # Narrow types have no sums of their own.
        exact = once.float() if once.itemsize < torch.float32.itemsize else once
        generator = torch.Generator(once.device).manual_seed(seed)
        drawn = torch.rand(once.shape, generator=generator, device=once.device).sub_(0.5)
        steps = drawn.sign() * max(last_bits, 1.0)
        if last_bits < 1:
            steps[drawn.abs() > last_bits / 2] = 0
        once.copy_(exact + exact * (steps * max(torch.finfo(once.dtype).eps, epsilon)))


def _floats(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _fill(tensor: torch.Tensor, *, noise: Noise, number: int, fillers: Mapping[int, Filler] | None) -> None:
    with torch.inference_mode(False), torch.no_grad():
        once = _written_once(tensor)
        elements = _elements(once, noise=noise, number=number, fillers=fillers)
        _repeat(elements.to(once.device), once)


def _elements(tensor: torch.Tensor, *, noise: Noise, number: int, fillers: Mapping[int, Filler] | None) -> torch.Tensor:
    uniform = noise.uniform(tensor, number=number)
    filler = fillers.get(number) if fillers is not None else None
    if tensor.dtype == torch.bool and (filler is None or filler.kind is not Kind.CHOICES):
        return torch.ones(len(uniform), dtype=torch.bool) if fillers is None else mask_of(tensor, uniform=uniform)
    if filler is not None and (filler.kind is Kind.DEFINITE or not tensor.is_complex()):
        return elements_of(tensor, filler, uniform=uniform, signed=noise.signed(tensor, number=number))
    return noise.elements(tensor, number=number) if _floats(tensor) else torch.zeros(len(uniform), dtype=tensor.dtype)


def _written_once(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what expand() repeats."""
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _repeat(elements: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fills a tensor with elements, over and over."""
    count = tensor.numel()
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if count == 0 or steps + 1 != count:
        # There are gaps between its elements.
        tensor.copy_(elements.repeat(-(-count // max(len(elements), 1)))[:count].view(tensor.shape))
        return
    flat, filled = tensor.as_strided((count,), (1,)), elements.numel()
    flat[:filled] = elements
    while filled < count:
        more = min(filled, count - filled)
        flat[filled : filled + more] = flat[:more]
        filled += more
