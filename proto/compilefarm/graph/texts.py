"""Text in the arguments of a call: which parameters take some, and what it may say.

Inductor writes arguments into sources in many ways, and not all of them quote text. So text stands only where the
schema of an operator, or a function that is known here, takes it; it says a word that is known, where there are such;
and no text has a character that means something to C++, Python or a shell.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from compilefarm.graph.collectives import PARAMETER, GroupName, is_collective
from compilefarm.graph.messages import find_place, is_numbered
from compilefarm.graph.operators import find_operator, overloads_of
from compilefarm.torch_internals.numpy_calls import AS_TYPE, EINSUM
from compilefarm.torch_internals.operators import schema_of
from compilefarm.torch_internals.traced_functions import ENTER_AUTOCAST
from compilefarm.v1.graph_pb2 import TargetKind

# What any text of a request may be. Without quotes, backslashes, slashes, braces, semicolons and control characters it
# ends no literal and no comment.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:+\-> ()*]{0,400}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
# Of parameters of operators for whose words there is no table, in other libraries, say.
_WORDS = re.compile(r"[A-Za-z0-9_.,:+\-]{0,200}")
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin", "min", "max", "any", "all", "add", "multiply")

# What a text may say, by the name of the parameter that takes it, whichever operator or function that belongs to.
_KNOWN: Mapping[str, re.Pattern[str]] = {
    name: re.compile("|".join(words))
    for name, words in {
        "UPLO": ("[LUlu]",),
        "approximate": ("none", "tanh"),
        "compute_mode": (
            "use_mm_for_euclid_dist_if_necessary",
            "use_mm_for_euclid_dist",
            "donot_use_mm_for_euclid_dist",
        ),
        "device": (_DEVICE.pattern,),
        "device_type": ("cpu", "cuda"),
        "dtype_name": (r"bool|(int|uint|float|complex)[0-9]{1,3}",),
        "driver": ("gels", "gelsy", "gelsd", "gelss", "gesvd", "gesvdj", "gesvda"),
        "equation": (r"[A-Za-z.,\-> ]{0,200}",),
        "indexing": ("ij", "xy"),
        "interpolation": ("linear", "lower", "higher", "midpoint", "nearest"),
        # Of padding, interpolation, sampled grids, bags of embeddings, and QR.
        "mode": (
            *("constant", "reflect", "replicate", "circular"),
            *("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area", "lanczos"),
            *("sum", "mean", "max"),
            *("reduced", "complete", "r"),
        ),
        "name": tuple(SDPBackend.__members__),
        "norm": ("forward", "backward", "ortho"),
        "ord": ("fro", "nuc"),
        "p": ("fro", "nuc"),
        "pad_mode": ("constant", "reflect", "replicate", "circular"),
        "padding": ("same", "valid"),
        "padding_mode": ("zeros", "border", "reflection"),
        "padding_side": ("left", "right"),
        "pattern": (r"[A-Za-z0-9_.,()\-> *]{0,200}",),
        "randomness": ("error", "different", "same"),
        "reduce": _REDUCTIONS,
        # Of collectives (torch/csrc/distributed/c10d/Functional.cpp: to_reduce_op).
        "reduce_op": ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"),
        # What einops.rearrange and einops.repeat call is its reduce.
        "reduction": ("none", "mean", "sum", "batchmean", "elementwise_mean", "rearrange", "repeat", *_REDUCTIONS),
        "rounding_mode": ("trunc", "floor"),
        "side": ("left", "right"),
    }.items()
}
# Functions whose signatures do not say that their first argument is text; for which of the parameters above.
_FIRST = {"torch.functional.einsum": "equation", "torch.einsum": "equation"}
_FIRST |= {ENTER_AUTOCAST: "device_type", EINSUM: "equation"}


def is_plain(text: str) -> bool:
    """Whether a text holds only characters that mean nothing to a compiler or a shell, and not too many."""
    return _PLAIN.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text can be the name of an argument or a variable, in ASCII."""
    return _NAME.fullmatch(text) is not None and not iskeyword(text)


def holds_text(value: object) -> bool:
    """Whether a value is text, or a container with some in it."""
    if isinstance(value, list | tuple):
        return any(map(holds_text, value))
    if isinstance(value, Mapping):
        return True
    if isinstance(value, slice):
        return any(map(holds_text, (value.start, value.stop, value.step)))
    return isinstance(value, str)


def find_objection(
    kind: TargetKind.ValueType, *, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Why a call may not have the texts that are among its arguments; None if it may.

    Args:
        kind: the name space of what is called, other than Python's functions and higher-order operators.
        name: the name of what is called; it is known to exist.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    given: Iterable[tuple[int | str, object]] = (*enumerate(args), *kwargs.items())
    message = find_place(name) or ()
    for place, value in given:
        if not holds_text(value):
            continue
        if place in message:
            if not is_numbered(value):
                return "a message stays in the pod, and a number is sent in its place"
            continue
        if not isinstance(value, str):
            return f"argument {place} is a container with text, or a dictionary"
        parameters = _parameters(kind, name).at(place)
        if not parameters:
            return f"argument {place} is text, which it does not take"
        if isinstance(value, GroupName) != (is_collective(name) and PARAMETER in parameters):
            return f"argument {place} is a process group where none is taken, or none where one is"
        if isinstance(value, GroupName):
            continue
        if not any(_KNOWN.get(parameter, _WORDS).fullmatch(value) for parameter in parameters):
            return f"the text {value[:80]!r} is none that {parameters[0]} takes"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameters:
    """Which parameters of a target take text.

    Attributes:
        by_position: their names.
        by_name: those that may be passed by name.
    """

    by_position: Mapping[int, tuple[str, ...]]
    by_name: frozenset[str]

    def at(self, place: int | str) -> tuple[str, ...]:
        """Names of the parameters that an argument may be meant for."""
        if isinstance(place, int):
            return self.by_position.get(place, ())
        return (place,) if place in self.by_name else ()


@functools.cache
def _parameters(kind: TargetKind.ValueType, name: str) -> _Parameters:
    if name in _FIRST:
        return _Parameters(by_position={0: (_FIRST[name],)}, by_name=frozenset())
    if name == AS_TYPE:
        return _Parameters(by_position={1: ("dtype_name",)}, by_name=frozenset())
    if kind == TargetKind.TARGET_KIND_LIBRARY_FUNCTION:
        # einops: rearrange(tensor, pattern), reduce(tensor, pattern, reduction), einsum(*tensors, pattern).
        everywhere = dict.fromkeys(range(64), ("pattern",)) | {2: ("pattern", "reduction")}
        return _Parameters(by_position=everywhere, by_name=frozenset({"pattern", "reduction"}))
    if kind == TargetKind.TARGET_KIND_OPERATOR_OVERLOAD:
        return _of_operators([find_operator(name, is_overload=True)])
    function = _python_function(kind, name)
    if function is not None:
        return _of_function(function)
    operator = name if "::" in name else f"aten::{name.rpartition('.')[2]}"
    packet = find_operator(operator, is_overload=False)
    of_operators = _of_operators([] if packet is None else overloads_of(packet))
    # What makes tensors takes a device by name in all its forms.
    return _Parameters(by_position=of_operators.by_position, by_name=of_operators.by_name | {"device"})


def _python_function(kind: TargetKind.ValueType, name: str) -> FunctionType | None:
    """What is called, if it is written in Python and says what its parameters are called."""
    from compilefarm.graph.targets import get_target

    found: object = None
    if kind == TargetKind.TARGET_KIND_TORCH_FUNCTION:
        found = get_target(kind, name=name)
    elif kind == TargetKind.TARGET_KIND_TENSOR_METHOD:
        found = getattr(torch.Tensor, name, None)
    return found if isinstance(found, FunctionType) else None


def _of_function(function: Callable[..., Any]) -> _Parameters:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        # Python around a method in C, as of x ** y (torch/_tensor.py).
        parameters = []
    known = {parameter.name for parameter in parameters} & _KNOWN.keys()
    positions = {
        number: (parameter.name,)
        for number, parameter in enumerate(parameters)
        if parameter.name in known and parameter.kind != parameter.KEYWORD_ONLY
    }
    return _Parameters(by_position=positions, by_name=frozenset(known))


def _of_operators(overloads: Iterable[Any]) -> _Parameters:
    positions: dict[int, list[str]] = {}
    names: set[str] = set()
    for overload in overloads:
        for number, name, is_keyword in _taking_text(overload):
            names.add(name)
            if not is_keyword:
                positions.setdefault(number, []).append(name)
    return _Parameters(
        by_position={number: tuple(sorted(set(given))) for number, given in positions.items()},
        by_name=frozenset(names),
    )


def _taking_text(overload: Any) -> Iterator[tuple[int, str, bool]]:
    for number, argument in enumerate(schema_of(overload).arguments):
        match str(argument.real_type).removeprefix("Optional[").removesuffix("]"):
            case "str" | "Any":
                yield number, argument.name, argument.kwarg_only
            case "Device":
                # By whatever name it goes there.
                yield number, "device", argument.kwarg_only
