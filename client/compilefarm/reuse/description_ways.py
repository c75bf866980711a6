"""Which part describes which kind of object, of those that are compared by their identity."""

from __future__ import annotations

import contextvars
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compilefarm.reuse.callable_descriptions import (
    FINDING,
    describe_c_callable,
    describe_code,
    describe_finding,
    describe_function,
    describe_method,
    describe_operator_of_torch,
    describe_partial,
    refuse_script,
)
from compilefarm.reuse.class_descriptions import describe_class
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.module_descriptions import describe_module
from compilefarm.reuse.names_in_code import C_CALLABLES
from compilefarm.reuse.type_descriptions import describe_variable_of_types
from compilefarm.reuse.value_descriptions import describe_autocast, describe_looked_into, describe_pattern
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket

_Way = Callable[[Describes, Any], str]

# The first whose classes a value is an instance of.
WAYS: tuple[tuple[Any, _Way], ...] = (
    (types.ModuleType, describe_module),
    (type, describe_class),
    (types.FunctionType, describe_function),
    (types.CodeType, describe_code),
    (types.MethodType, describe_method),
    (C_CALLABLES, describe_c_callable),
    ((staticmethod, classmethod), lambda by, each: f"{type(each).__name__}:{by.identity(each.__func__)}"),
    (property, lambda by, each: f"property:{by.all_members([each.fget, each.fset, each.fdel])}"),
    (functools.cached_property, lambda by, each: f"cached_property:{by.identity(each.func)}"),
    (functools.partial, describe_partial),
    (functools._lru_cache_wrapper, lambda by, each: f"cached:{by.identity(each.__wrapped__)}"),
    ((OpOverload, OpOverloadPacket), describe_operator_of_torch),
    (re.Pattern, describe_pattern),
    (re.Match, describe_looked_into),
    (torch.autocast, describe_autocast),
    ((torch.finfo, torch.iinfo), lambda _, each: f"{type(each).__name__}:{each.dtype}"),
    (typing.TypeVar, describe_variable_of_types),
    # What it has in this context stands at a place of its own.
    (contextvars.ContextVar, lambda by, each: by.alike.told_apart(f"context variable:{each.name}")),
    (torch.jit.ScriptFunction, refuse_script),
)
# Of most values, which are of one of these classes themselves, without a look at what else they could be.
WAYS_OF_KINDS: Mapping[type, _Way] = {
    **{kind: way for kinds, way in WAYS for kind in (kinds if isinstance(kinds, tuple) else (kinds,))},
    **dict.fromkeys(FINDING, describe_finding),
}
