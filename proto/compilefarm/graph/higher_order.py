"""Arguments of higher-order operators. They have no schemas of torch's that could be asked, so theirs are written here:
subgraphs, values, and few literals, each of a known type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node, map_arg

from compilefarm.graph.messages import is_region

Check = Callable[[object], bool]

# Options of flex_attention's kernels (torch/nn/attention/flex_attention.py: FlexKernelOptions, _apply_kernel_options),
# which Inductor writes into the sources of templates; with one of these in front they are for one direction.
_DIRECTIONS = re.compile(r"(fwd_|bwd_)?")
_BOOLEANS = frozenset(
    {"BLOCKS_ARE_CONTIGUOUS", "FORCE_USE_FLEX_ATTENTION", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX", "PRESCALE_QK",
     "ROWS_GUARANTEED_SAFE", "USE_TMA", "WRITE_DQ"}
)  # fmt: skip
_INTEGERS = frozenset(
    {"BLOCK_M", "BLOCK_M1", "BLOCK_M2", "BLOCK_N", "BLOCK_N1", "BLOCK_N2", "kpack", "matrix_instr_nonkdim",
     "num_stages", "num_warps", "waves_per_eu"}
)  # fmt: skip
_BACKENDS = frozenset({"AUTO", "FLASH", "TRITON", "TRITON_DECODE"})
_INDICES = re.compile(r"([0-9]{1,6}(,[0-9]{1,6}){0,1000})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """What a higher-order operator takes.

    Attributes:
        positional: what each positional argument has to be; those at the end may be left out.
        rest: what further ones have to be; None if there are none.
        keywords: what keyword arguments have to be.
        other_keywords: what those have to be that `keywords` does not name; None if there are none.
    """

    positional: Sequence[Check]
    rest: Check | None = None
    keywords: Mapping[str, Check] = field(default_factory=dict)
    other_keywords: Check | None = None


def find_misfit(name: str, *, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Why a higher-order operator may not be called with these arguments; None if it may."""
    signature = SIGNATURES[name]
    for position, value in enumerate(args):
        check = signature.positional[position] if position < len(signature.positional) else signature.rest
        if check is None or not check(value):
            return f"argument {position} is of no type that it takes there: {value!r:.120}"
    for keyword, value in kwargs.items():
        check = signature.keywords.get(keyword, signature.other_keywords)
        if check is None or not check(value):
            return f"the argument {keyword} is none that it takes, or of another type: {value!r:.120}"
    return None


def holds_graph(values: Any) -> bool:
    """Whether one of these values is a graph, which who takes it could run: a library, or Python, runs it unseen."""
    found: list[Node] = []
    map_arg(values, found.append)
    return any(map(_is_graph, found))


def _is_graph(value: object) -> bool:
    if not isinstance(value, Node) or value.op != "get_attr":
        return False
    # A graph that is being decoded belongs to no module yet, and reads no tensors of one.
    owner = value.graph.owning_module
    return owner is None or isinstance(attrgetter(str(value.target))(owner), GraphModule)


def _are_graphs(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_graph, value))


def _is_value(value: object) -> bool:
    """A result of a node, a number, a dtype or a device, or a container of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_value, value))
    is_value = value is None or isinstance(value, Node | int | float | complex | torch.dtype | torch.device)
    return is_value and not _is_graph(value)


def _is_mask(value: object) -> bool:
    """A flexible attention's: sizes, tensors, and a graph (torch/nn/attention/flex_attention.py: BlockMask)."""
    return isinstance(value, list | tuple) and all(_is_value(item) or _is_graph(item) for item in value)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _are_indices(value: object) -> bool:
    return isinstance(value, list | tuple) and all(type(item) in (bool, int) for item in value)


def _is_index_text(value: object) -> bool:
    return isinstance(value, str) and _INDICES.fullmatch(value) is not None


def _is_device_type(value: object) -> bool:
    return value in ("cpu", "cuda")


def _is_identifier(value: object) -> bool:
    # It becomes part of a name in generated source.
    return value is None or is_region(value)


def _is_determinism_check(value: object) -> bool:
    return value in ("default", "none")


def _are_kernel_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_kernel_option, value.keys(), value.values()))


def _is_kernel_option(name: object, value: object) -> bool:
    if not isinstance(name, str):
        return False
    # For one direction it would be written into the source of the kernel, as a name (torch/_inductor/kernel/flex: only
    # the one for both is taken out).
    if name == "BACKEND":
        return isinstance(value, str) and value in _BACKENDS
    option = _DIRECTIONS.sub("", name, count=1)
    return (option in _BOOLEANS and isinstance(value, bool)) or (
        option in _INTEGERS and type(value) is int and abs(value) < 2**31
    )


_MUTATED = {"mutated_arg_indices": _is_index_text}
_CHECKPOINT = _Signature(
    positional=(_is_graph,),
    rest=_is_value,
    keywords={"determinism_check": _is_determinism_check},
    other_keywords=_is_value,
)
_LOOP = _Signature(positional=(_is_graph, _is_graph, _is_value, _is_value), keywords=_MUTATED)
# By name: torch/_higher_order_ops and torch/_functorch/autograd_function.py.
SIGNATURES: Mapping[str, _Signature] = {
    "associative_scan": _Signature(positional=(_is_graph, _is_value, _is_value)),
    "autograd_function_apply": _Signature(
        positional=(_is_graph, _is_graph),
        rest=_is_value,
        keywords=dict.fromkeys(
            ("args_tensor_mask", "dirty_idx", "non_differentiable_idx", "saved_for_backward_idx"), _are_indices
        ),
    ),
    "cond": _Signature(positional=(_is_value, _is_graph, _is_graph, _is_value)),
    "flex_attention": _Signature(
        positional=(
            *(_is_value, _is_value, _is_value, _is_graph, _is_mask),
            *(_is_finite, _are_kernel_options, _is_value, _is_value),
        )
    ),
    "invoke_subgraph": _Signature(positional=(_is_graph, _is_identifier), rest=_is_value),
    "map_impl": _Signature(positional=(_is_graph, _is_value, _is_value), keywords=_MUTATED),
    "register_hook": _Signature(positional=(_is_value, _is_graph), rest=_is_value),
    "scan": _Signature(positional=(_is_graph, _is_value, _is_value, _is_value), keywords=_MUTATED),
    "switch": _Signature(positional=(_is_value, _are_graphs, _is_value)),
    "tag_activation_checkpoint": _CHECKPOINT,
    "while_loop": _LOOP,
    # Results of all steps, which gradients of loops are computed of.
    "while_loop_stack_output": _LOOP,
    "wrap": _Signature(positional=(_is_graph,), rest=_is_value, other_keywords=_is_value),
    "wrap_activation_checkpoint": _CHECKPOINT,
    "wrap_with_autocast": _Signature(
        positional=(_is_device_type, _is_value, _is_value, _is_value, _is_graph), rest=_is_value
    ),
    "wrap_with_set_grad_enabled": _Signature(positional=(_is_boolean, _is_graph), rest=_is_value),
}
