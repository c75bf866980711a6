"""What tensors look like, without their elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.devices import DeviceNumbers, decode_device
from compilefarm.graph.dtypes import get_dtype, name_dtype, name_of
from compilefarm.graph.symbols import NO_SYMBOLS, Symbols, SymbolTable, find_hint
from compilefarm.torch_internals.fake_tensors import FakeTensor
from compilefarm.v1.graph_pb2 import Dimension, TensorSpec

# More than any machine holds; keeps products of sizes and strides away from 64 bits.
MAX_ELEMENTS = 2**44
MAX_DIMENSIONS = 64
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of torch's own type, or a fake one or a parameter of it."""
    return type(tensor) in _PLAIN_TYPES


def check_plain(tensor: torch.Tensor, *, what: str) -> None:
    """Checks that shape, strides, dtype and device say all about a tensor.

    Raises:
        Bypass: they do not.
    """
    if not is_plain(tensor):
        raise Bypass("tensor_subclass", f"{what} is a {type(tensor).__module__}.{type(tensor).__qualname__}")
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        layout = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else name_of(tensor.layout)
        raise Bypass("layout", f"{what} is a {layout} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise Bypass("lazy_view", f"{what} is a lazily conjugated or negated view; resolve_conj() or resolve_neg() it")
    if _may_overlap(_hints(tensor.shape, what=what), _hints(tensor.stride(), what=what)):
        raise Bypass("overlapping_strides", f"{what} has elements that share memory, as unfold() makes them")


def encode_tensor(
    tensor: torch.Tensor, *, into: TensorSpec, devices: DeviceNumbers, symbols: SymbolTable, what: str
) -> None:
    """Writes what a plain tensor looks like.

    Raises:
        Bypass: a size cannot be said.
    """
    into.dtype = name_dtype(tensor.dtype)
    into.device.CopyFrom(devices.encode(tensor.device))
    for size in tensor.shape:
        symbols.encode_dimension(size, into=into.shape.add(), what=what)
    for stride in tensor.stride():
        symbols.encode_dimension(stride, into=into.stride.add(), what=what)
    if find_hint(tensor.storage_offset()) != 0:
        symbols.encode_dimension(tensor.storage_offset(), into=into.storage_offset, what=what)
    into.requires_grad = tensor.requires_grad


def look_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two plain tensors have one specification in the call at hand, but for gradients."""
    return all(
        get(first) == get(second)
        for get in (
            lambda tensor: (tensor.dtype, tensor.device),
            lambda tensor: _hints((*tensor.shape, *tensor.stride(), tensor.storage_offset()), what="an input"),
        )
    )


def decode_tensor(
    spec: TensorSpec,
    *,
    what: str,
    symbols: Symbols = NO_SYMBOLS,
    empty: Callable[..., torch.Tensor] = torch.empty,
) -> torch.Tensor:
    """A tensor that looks as the specification says; its elements are whatever `empty` leaves.

    Args:
        spec: the specification.
        what: the tensor's role, for messages.
        symbols: what its sizes may refer to.
        empty: makes the storage; called as torch.empty is.

    Raises:
        InvalidRequest: the specification contradicts itself or is out of bounds.
    """
    # Checked as they are in the call at hand: to look at a symbol is to put a guard on it.
    shape, stride = _numbers(spec.shape, symbols, what=what), _numbers(spec.stride, symbols, what=what)
    offset = _numbers([spec.storage_offset], symbols, what=what)[0] if spec.HasField("storage_offset") else 0
    extent = _extent(shape, stride, what=what) + offset
    # What expand() repeats takes no memory here, but it does in the results.
    if max(extent, math.prod(shape)) > MAX_ELEMENTS:
        raise InvalidRequest(f"{what} has or spans more than {MAX_ELEMENTS} elements, which is the most that is taken")
    if _may_overlap(shape, stride):
        raise InvalidRequest(f"{what} has strides {stride} that make elements of shape {shape} overlap")
    dtype, device = get_dtype(spec.dtype), decode_device(spec.device)
    if spec.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise InvalidRequest(f"{what} wants gradients, which {spec.dtype} has not")
    sizes, steps = [symbols.value(size) for size in spec.shape], [symbols.value(step) for step in spec.stride]
    start = symbols.value(spec.storage_offset) if spec.HasField("storage_offset") else 0
    storage = empty(reached_elements(sizes, steps) + start if extent else 0, dtype=dtype, device=device)
    # set_() and not as_strided(): an input owns its storage, it is no view of another tensor.
    tensor = storage.new_empty(0).set_(storage.untyped_storage(), start, sizes, steps)
    return tensor.requires_grad_(spec.requires_grad)


def _hints(numbers: Iterable[int | torch.SymInt], *, what: str) -> list[int]:
    hints = [find_hint(number) for number in numbers]
    if None in hints:
        raise Bypass("unbacked_input", f"{what} has a size of which is not known what it is now")
    return hints  # type: ignore[return-value]  # checked above


def _numbers(dimensions: Sequence[Dimension], symbols: Symbols, *, what: str) -> list[int]:
    numbers = [symbols.hint(dimension, what=what) for dimension in dimensions]
    if any(number < 0 for number in numbers):
        raise InvalidRequest(f"{what} has a negative size, stride or offset in {numbers}")
    return numbers


def _extent(shape: Sequence[int], stride: Sequence[int], *, what: str) -> int:
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"{what} has {len(shape)} sizes and {len(stride)} strides; as many of each, at most {MAX_DIMENSIONS}, are"
            " expected"
        )
    return 0 if 0 in shape else reached_elements(shape, stride)


def reached_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    """From the first element of a tensor to its last, as many elements of memory; it has at least one."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements share memory in another way than expand() makes them, which repeats them with stride 0."""
    if 0 in shape:
        return False
    reach = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1 and step):
        if step < reach:
            return True
        reach += (size - 1) * step
    return False
