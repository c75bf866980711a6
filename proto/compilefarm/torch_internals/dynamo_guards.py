"""Dynamo's guards: taken apart, and built again on the values of another process."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch._dynamo import guards as _guards
from torch._dynamo.output_graph import OutputGraphGuardsState  # torch/_dynamo/output_graph.py
from torch._guards import DuplicateInputs, Guard, GuardsSet, StorageOverlap  # torch/_guards.py
from torch.fx.experimental.symbolic_shapes import _ShapeGuardsHelper

from compilefarm.torch_internals.dynamo import STATIC_MARK
from compilefarm.torch_internals.dynamo_sources import Source

__all__ = [
    "TracedGuard",
    "TracedGuards",
    "aliases_of",
    "build_guards",
    "dispatch_keys",
    "failed_guard",
    "global_state",
    "guards_hold",
    "guards_of",
    "is_copy_on_write",
    "notes_of",
    "range_of_iterator",
    "sizes_of",
    "tuple_iterator_length",
]

tuple_iterator_length = _guards.tuple_iterator_len  # torch/_dynamo/utils.py
range_of_iterator = _guards.normalize_range_iter  # torch/_dynamo/utils.py

# Sizes that a program of AOTAutograd has found to differ. What comes of it is right for any size, and not guarded.
_PROPAGATED = "_dynamo_propagated_dynamic_indices"
# How the names begin of what torch notes for Dynamo.
_NOTED = ("_dynamo_", "_specialize_on")

# What a guard is told beside its source, and what it looks up itself where it is not told.
_OWN_VALUE = "value"


class TracedGuard(NamedTuple):
    """A guard: a method of GuardBuilder by name, the source it is on, and its other arguments."""

    kind: str
    source: Source
    arguments: Mapping[str, Any]

    def on_value(self) -> TracedGuard:
        """The same, on the source of the value that is guarded, with what is asked of it."""
        if self.kind == "HASATTR" and "attr" not in self.arguments:
            # Until 2.12 such a guard is on the attribute, which need not be there.
            source: Any = self.source
            return TracedGuard(self.kind, source.base, {"attr": source.member})
        return self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedGuards:
    """All that a check of guards is built from, but values.

    Attributes:
        guards: one by one.
        shape_expressions: conditions on sizes.
        sizes: size and stride of tensors, with None for what the conditions say.
        key_order: dictionaries whose order counts.
        aliases: as `aliases_of`.
        builtins_name: what the dictionary of builtins is called among the globals; None if it is not there.
    """

    guards: Sequence[TracedGuard]
    shape_expressions: Sequence[str]
    sizes: Mapping[Source, tuple[Sequence[int | None], Sequence[int | None]]]
    key_order: Sequence[Source]
    aliases: Sequence[tuple[str, Sequence[Source], Sequence[Source]]]
    builtins_name: str | None


def guards_of(output_graph: Any) -> list[tuple[TracedGuard, Sequence[str]]]:
    """The guards of a trace, each with the code that building it has left (nothing before)."""
    found = [(guard.sort_key(), _taken_apart(guard), tuple(guard.code_list or ())) for guard in output_graph.guards]
    # Torch's own order leaves guards of one kind on one source in that of a set.
    found.sort(key=lambda each: (each[0], each[1].kind, repr(sorted(each[1].arguments.items()))))
    return [(guard, code) for _, guard, code in found]


def sizes_of(output_graph: Any) -> dict[Source, tuple[Sequence[int | None], Sequence[int | None]]]:
    """Size and stride that each tensor is guarded for, with None for what differs from call to call."""
    concrete = _guards.convert_to_concrete_values
    return {
        source: (concrete(known["size"]), concrete(known["stride"]))
        for source, known in output_graph.input_source_to_sizes_strides.items()
    }


def aliases_of(output_graph: Any) -> list[tuple[str, Sequence[Source], Sequence[Source]]]:
    """What AOTAutograd relies on between inputs: a kind, and two groups of sources.

    Raises:
        ValueError: there is a kind that is not known.
    """
    return [_alias_of(guard) for guard in output_graph.aotautograd_guards]


def dispatch_keys(tensor: torch.Tensor) -> int:
    """What decides which kernels a tensor goes to: device, conjugation, views of subclasses, inference, modes."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def global_state() -> Any:
    """What GLOBAL_STATE guards, now: grad mode, autocast, determinism, threads, default dtype."""
    return torch._C._dynamo.guards.GlobalStateGuard()


def notes_of(tensor: torch.Tensor, source: Source) -> dict[str, Any]:
    """What is set on a tensor that a trace looks at, by name; what torch notes for Dynamo as tuples and frozen sets.

    There torch notes for Dynamo which sizes differ from call to call and in what range, whether a tensor stays where it
    is in memory (torch/_dynamo/decorators.py), and that it is a buffer or a parameter (torch/nn/parameter.py). Whether
    they stay, Dynamo notes itself of parameters and of what modules hold (torch/_dynamo/variables/builder.py:
    wrap_tensor): that is told of them before and after.
    """
    # What others set may be large, or no values at all: it is not taken apart.
    found = {
        name: _plain(value) if name.startswith(_NOTED) else value
        for name, value in vars(tensor).items()
        if name != _PROPAGATED
    }
    if isinstance(tensor, torch.nn.Parameter) or source.guard_source.is_unspecialized_nn_module():
        found.setdefault(STATIC_MARK, "unguarded")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _plain(each)) for key, each in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(map(_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A range of sizes.
        return dataclasses.astuple(value)
    return value


def is_copy_on_write(tensor: torch.Tensor) -> bool:
    """Whether the tensor's storage is copied when it is written."""
    return bool(torch._C._is_cow_tensor(tensor))


def build_guards(
    code: CodeType,
    traced: TracedGuards,
    *,
    local_variables: dict[str, Any],
    global_variables: dict[str, Any],
) -> Any:
    """Builds the check of guards on the values of a frame; a CheckFunctionManager.

    It is not called: whether the guards hold is for the caller to see (`guards_hold`).

    Raises:
        Exception: a guard cannot be built on these values.
    """
    guards = GuardsSet({_put_together(guard) for guard in traced.guards})
    state = OutputGraphGuardsState(
        local_scope=local_variables,
        global_scope=global_variables,
        torch_function_mode_stack=[],
        guard_on_key_order=set(traced.key_order),
        input_source_to_sizes_strides={
            source: {"size": size, "stride": stride} for source, (size, stride) in traced.sizes.items()
        },
        dual_level=torch.autograd.forward_ad._current_level,
        functorch_layers=[],
        current_device=torch.utils._device.CURRENT_DEVICE,
        global_state_guard=global_state(),
        _guards=guards,
        _aotautograd_guards=[_relation(alias) for alias in traced.aliases],
        skip_guards_check=True,
        name_of_builtins_dict_key_in_fglobals=traced.builtins_name,
    )
    expressions = _ShapeGuardsHelper(exprs=list(traced.shape_expressions))
    shapes = _guards.ShapeCodeParts(
        python_code_parts=expressions,
        verbose_code_parts=expressions,
        cpp_code_parts=None,
        python_fallback=True,
        shape_env_sources=[],
    )
    output_graph: Any = state
    return _guards.CheckFunctionManager(
        code, output_graph, shape_code_parts=shapes, runtime_global_scope=global_variables
    )


def guards_hold(manager: Any, local_variables: dict[str, Any]) -> bool:
    """Whether guards hold on the values of a frame.

    Args:
        manager: what `build_guards` gave.
        local_variables: of the frame.

    Raises:
        Exception: a guard cannot be looked at with these values.
    """
    with _torch_functions_as_they_are():
        return bool(manager.guard_manager.check(local_variables))


def failed_guard(manager: Any, local_variables: dict[str, Any]) -> str:
    """The first guard that does not hold, for people. Arguments and errors are those of `guards_hold`."""
    with _torch_functions_as_they_are():
        parts = list(manager.guard_manager.check_verbose(local_variables).verbose_code_parts)
    return str(parts[0]) if parts else "unknown"


@contextmanager
def _torch_functions_as_they_are() -> Iterator[None]:
    """Has subclasses and modes of torch functions count as before, whatever happens inside.

    Guards are looked at without them, and with torch 2.11 one that raises an error leaves them switched off in this
    thread (torch/csrc/dynamo/guards.cpp: RootGuardManager).
    """
    state = torch._C._get_torch_function_state()
    try:
        yield
    finally:
        torch._C._set_torch_function_state(state)


def _taken_apart(guard: Guard) -> TracedGuard:
    make = guard.create_fn
    arguments: dict[str, Any] = {}
    if isinstance(make, functools.partial):
        names = inspect.signature(make.func).parameters
        if make.args:
            raise ValueError(f"{guard.create_fn_name()} has arguments without names")
        arguments = {name: value for name, value in make.keywords.items() if name in names and name != _OWN_VALUE}
    return TracedGuard(kind=guard.inner_create_fn().__name__, source=guard.originating_source, arguments=arguments)


def _put_together(guard: TracedGuard) -> Guard:
    make = getattr(_guards.GuardBuilder, guard.kind)
    return Guard(guard.source, functools.partial(make, **guard.arguments) if guard.arguments else make)


def _alias_of(guard: Any) -> tuple[str, Sequence[Source], Sequence[Source]]:
    if isinstance(guard, DuplicateInputs):
        return "DuplicateInputs", [guard.input_source_a], [guard.input_source_b]
    if isinstance(guard, StorageOverlap):
        return "StorageOverlap", list(guard.overlapping_sources), list(guard.non_overlapping_sources)
    raise ValueError(f"{type(guard).__name__} is not known")


def _relation(alias: tuple[str, Sequence[Source], Sequence[Source]]) -> Any:
    kind, first, second = alias
    if kind == "DuplicateInputs":
        return DuplicateInputs(first[0], second[0])
    return StorageOverlap(list(first), list(second))
