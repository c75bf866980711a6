"""What tensors look like, without their elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.devices import DeviceNumbers, decode_device
from compilefarm.graph.dtypes import get_dtype, name_dtype, name_of
from compilefarm.v1.graph_pb2 import Dimension, TensorSpec

# More than any machine holds; keeps products of sizes and strides away from 64 bits.
MAX_ELEMENTS = 2**44
MAX_DIMENSIONS = 64
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def check_plain(tensor: torch.Tensor, *, what: str) -> None:
    """Checks that shape, strides, dtype and device say all about a tensor.

    Raises:
        Bypass: they do not.
    """
    if type(tensor) not in _PLAIN_TYPES:
        raise Bypass("tensor_subclass", f"{what} is a {type(tensor).__module__}.{type(tensor).__qualname__}")
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
        layout = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else name_of(tensor.layout)
        raise Bypass("layout", f"{what} is a {layout} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise Bypass("lazy_view", f"{what} is a lazily conjugated or negated view; resolve_conj() or resolve_neg() it")
    if any(isinstance(number, torch.SymInt) for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
        raise Bypass("dynamic_shapes", f"{what} has symbolic sizes; the farm takes static shapes so far")
    if _may_overlap(tensor.shape, tensor.stride()):
        raise Bypass("overlapping_strides", f"{what} has elements that share memory, as expand() makes them")


def encode_tensor(tensor: torch.Tensor, *, into: TensorSpec, devices: DeviceNumbers) -> None:
    """Writes what a plain tensor looks like."""
    into.dtype = name_dtype(tensor.dtype)
    into.device.CopyFrom(devices.encode(tensor.device))
    into.shape.extend(Dimension(size=size) for size in tensor.shape)
    into.stride.extend(Dimension(size=stride) for stride in tensor.stride())
    if tensor.storage_offset():
        into.storage_offset.size = tensor.storage_offset()
    into.requires_grad = tensor.requires_grad


def look_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two plain tensors have one specification."""
    return all(
        get(first) == get(second)
        for get in (
            lambda tensor: (tensor.dtype, tensor.device, tensor.requires_grad),
            lambda tensor: (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()),
        )
    )


def decode_tensor(spec: TensorSpec, *, what: str, empty: Callable[..., torch.Tensor] = torch.empty) -> torch.Tensor:
    """A tensor that looks as the specification says; its elements are whatever `empty` leaves.

    Args:
        spec: the specification.
        what: the tensor's role, for messages.
        empty: makes the storage; called as torch.empty is.

    Raises:
        InvalidRequest: the specification contradicts itself or is out of bounds.
    """
    shape, stride = _numbers(spec.shape, what=what), _numbers(spec.stride, what=what)
    offset = _numbers([spec.storage_offset], what=what)[0] if spec.HasField("storage_offset") else 0
    extent = _extent(shape, stride, what=what) + offset
    if extent > MAX_ELEMENTS:
        raise InvalidRequest(f"{what} spans {extent} elements; at most {MAX_ELEMENTS} are taken")
    if _may_overlap(shape, stride):
        raise InvalidRequest(f"{what} has strides {stride} that make elements of shape {shape} overlap")
    dtype, device = get_dtype(spec.dtype), decode_device(spec.device)
    if spec.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise InvalidRequest(f"{what} wants gradients, which {spec.dtype} has not")
    storage = empty(extent, dtype=dtype, device=device)
    # set_() and not as_strided(): an input owns its storage, it is no view of another tensor.
    tensor = storage.new_empty(0).set_(storage.untyped_storage(), offset, shape, stride)
    return tensor.requires_grad_(spec.requires_grad)


def _numbers(dimensions: Sequence[Dimension], *, what: str) -> list[int]:
    if any(dimension.WhichOneof("value") != "size" for dimension in dimensions):
        raise InvalidRequest(f"{what} has a size, stride or offset that is not set")
    numbers = [dimension.size for dimension in dimensions]
    if any(number < 0 for number in numbers):
        raise InvalidRequest(f"{what} has a negative size, stride or offset in {numbers}")
    return numbers


def _extent(shape: Sequence[int], stride: Sequence[int], *, what: str) -> int:
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"{what} has {len(shape)} sizes and {len(stride)} strides; as many of each, at most {MAX_DIMENSIONS}, are"
            " expected"
        )
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    if 0 in shape:
        return False
    reach = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step < reach:
            return True
        reach += (size - 1) * step
    return False
