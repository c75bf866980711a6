"""Names of torch's dtypes, layouts and memory formats, as they are written on the wire: without "torch."."""

from __future__ import annotations

import re

import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass


def _by_name(kind: type) -> dict[str, object]:
    # Aliases (torch.float, torch.half) fold into the one name that str() gives.
    found = [value for value in vars(torch).values() if isinstance(value, kind)]
    return {str(value).removeprefix("torch."): value for value in found}


# Quantized and sub-byte dtypes: a shape and strides do not say what their elements are.
_OPAQUE = re.compile(r"q.*|bits.*|float4.*|u?int[1-7]")
DTYPES = {name: dtype for name, dtype in _by_name(torch.dtype).items() if not _OPAQUE.fullmatch(name)}
LAYOUTS = _by_name(torch.layout)
MEMORY_FORMATS = _by_name(torch.memory_format)


def name_of(value: object) -> str:
    """The wire name of a dtype, layout or memory format."""
    return str(value).removeprefix("torch.")


def name_dtype(dtype: torch.dtype) -> str:
    """The wire name of a dtype.

    Raises:
        Bypass: it is quantized or smaller than a byte.
    """
    name = name_of(dtype)
    if name not in DTYPES:
        raise Bypass("dtype", f"the graph uses {dtype}, which the farm does not take")
    return name


def get_dtype(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        InvalidRequest: this torch has no such dtype.
    """
    return _get(DTYPES, name=name, kind="dtype")


def get_layout(name: str) -> torch.layout:
    """The layout of that name; InvalidRequest as in `get_dtype`."""
    return _get(LAYOUTS, name=name, kind="layout")


def get_memory_format(name: str) -> torch.memory_format:
    """The memory format of that name; InvalidRequest as in `get_dtype`."""
    return _get(MEMORY_FORMATS, name=name, kind="memory format")


def _get(table: dict[str, object], *, name: str, kind: str) -> object:
    try:
        return table[name]
    except KeyError:
        raise InvalidRequest(f"torch {torch.__version__} has no {kind} {name[:80]!r}") from None
