"""Tensors that a graph holds itself: their elements travel as blobs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import torch

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, InvalidRequest, MissingBlobs
from compilefarm.core.held_tensors import MAX_ELEMENTS
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.devices import DeviceNumbers
from compilefarm.graph.symbols import SymbolTable
from compilefarm.graph.tensors import check_plain, decode_tensor, encode_tensor
from compilefarm.torch_internals.dynamo import is_static_address
from compilefarm.torch_internals.fake_tensors import FakeTensor
from compilefarm.v1.graph_pb2 import Constant

# What Python's numbers hold exactly.
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)


def is_constant(held: torch.Tensor) -> bool:
    """Whether a tensor that a graph holds may become part of it, if the graph does not write to it.

    Weights are trained and exchanged between calls, and what Dynamo was told stays where it is, such as the state of an
    optimizer, is so because others write to it.
    """
    is_weight = held.requires_grad or isinstance(held, torch.nn.Parameter) or int(held.numel()) > MAX_ELEMENTS
    return not is_weight and not is_static_address(held)


def encode_constant(held: torch.Tensor, *, into: Constant, devices: DeviceNumbers, what: str) -> bytes:
    """Writes a tensor that a graph holds, and returns its elements.

    Raises:
        Bypass: it is of a kind that cannot be said.
    """
    check_plain(held, what=what)
    if held.dtype not in _DTYPES or isinstance(held, FakeTensor) or sys.byteorder != "little":
        raise Bypass("graph_state", f"the elements of {what}, of {held.dtype}, cannot be written")
    # A fresh one: strides, offset and storage of the original decide nothing.
    elements = held.detach().clone(memory_format=torch.contiguous_format)
    encode_tensor(elements, into=into.spec, devices=devices, symbols=SymbolTable(), what=what)
    on_cpu = elements.cpu()
    if on_cpu.dtype is torch.bool:
        # Any other byte than 0 means true, and is no boolean for whatever takes it for one.
        on_cpu = on_cpu.view(torch.uint8).ne(0)
    content = ctypes.string_at(on_cpu.data_ptr(), on_cpu.nbytes) if on_cpu.nbytes else b""
    into.digest = digest_of(content)
    return content


def decode_constant(constant: Constant, *, blobs: Mapping[str, bytes]) -> torch.Tensor:
    """The tensor, contiguous and on the CPU.

    Raises:
        InvalidRequest: its specification is malformed, or does not fit the bytes.
        MissingBlobs: its bytes are not among `blobs`.
    """
    what = f"the constant {constant.digest[:80]}"
    content = blobs.get(constant.digest)
    if content is None:
        raise MissingBlobs(f"the bytes of {what} were not sent")
    if digest_of(content) != constant.digest:
        raise DigestMismatch(f"the bytes of {what} are not those of its digest")
    # Takes no memory: whether what is asked for is reasonable shows only now.
    outline = decode_tensor(constant.spec, what=what, empty=_meta)
    if not outline.is_contiguous() or outline.storage_offset() != 0 or outline.requires_grad:
        raise InvalidRequest(f"{what} is not contiguous, or wants gradients")
    if outline.numel() > MAX_ELEMENTS or outline.dtype not in _DTYPES:
        raise InvalidRequest(f"{what} has more than {MAX_ELEMENTS} elements, or is of a dtype that is not taken")
    if outline.nbytes != len(content):
        raise InvalidRequest(f"{what} takes {outline.nbytes} bytes, {len(content)} were sent")
    with torch.inference_mode(False):
        if not content:
            return torch.empty(outline.shape, dtype=outline.dtype)
        elements = torch.frombuffer(bytearray(content), dtype=outline.dtype)
        if outline.dtype is torch.bool and bool(elements.view(torch.uint8).gt(1).any()):
            raise InvalidRequest(f"{what} has booleans that are neither 0 nor 1")
        return elements.view(outline.shape)


def _meta(elements: int, **kwargs: Any) -> torch.Tensor:
    return torch.empty(elements, **(kwargs | {"device": "meta"}))
