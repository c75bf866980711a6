"""Descriptions of the kind of object that stands somewhere, whatever it is equal to: its class, and what is set on
it."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Mapping
from typing import Any

import torch

from compilefarm.reuse.called_functions import NAMES_OF_SLOTS
from compilefarm.reuse.collection_descriptions import NO_KEYS, describe_members_of_set, describe_order
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import CONSTANTS, shortened
from compilefarm.torch_internals.modules import hooks_in
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket

# Their attributes are described with themselves; torch marks tensors while it traces, and operators keep what was once
# looked up.
WITH_OTHER_NAMESPACE = (type, types.ModuleType, types.FunctionType, torch.Tensor, OpOverload, OpOverloadPacket)
# What takes the place of a method where it is set on an object, and most of what else is set on parts of models.
_OVERRIDES = (types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType, type)
_NEVER_CALLED = frozenset({*CONSTANTS, dict, list, tuple, set, collections.OrderedDict, torch.nn.Parameter})
# Of an object on which nothing is set.
_NOTHING_SET = f"+{shortened('')}"


def describe_object(describer: Describes, value: Any) -> str:
    """Describes an object by its class, what is set on it, and the order of what it holds."""
    kind = type(value)
    text = describer.of_class(kind)
    if kind is dict:
        # Nothing can be set on these.
        return text if id(value) in describer.read_by_name else f"{text}:{describe_order(describer, _keys_of(value))}"
    if kind is collections.OrderedDict and not value and not value.__dict__:
        # Half of all objects: modules have such for hooks of many kinds.
        return f"{text}:{NO_KEYS}{_NOTHING_SET}"
    if isinstance(value, (set, frozenset)) and len(value) > 1:
        text = f"{text}:{','.join(describe_members_of_set(describer, value, describer.member))}"
    # Variables and modules that are read are compared by their names. Who goes through all variables publishes
    # nothing, and who goes through all modules has a guard on their names.
    if isinstance(value, (dict, types.MappingProxyType)) and id(value) not in describer.read_by_name:
        text = f"{text}:{describe_order(describer, _keys_of(value))}"
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or isinstance(value, WITH_OTHER_NAMESPACE):
        return text
    return f"{text}{_overrides(describer, own) if own else _NOTHING_SET}"


def _keys_of(mapping: Mapping[Any, Any]) -> list[Any]:
    """The keys of a mapping, which may be what a class holds."""
    keys = list(mapping)
    if type(mapping) in (dict, types.MappingProxyType) and NAMES_OF_SLOTS in mapping:
        keys.remove(NAMES_OF_SLOTS)
    return keys


def _overrides(describer: Describes, own: Mapping[str, Any]) -> str:
    overrides = sorted(
        name for name, value in own.items() if type(value) not in _NEVER_CALLED and isinstance(value, _OVERRIDES)
    )
    said = [f"{name}={describer.member(own[name])}" for name in overrides]
    hooks = [f"{name}={describer.member(hooks)}" for name, hooks in hooks_in(own).items()]
    return f"+{shortened(';'.join([*map(str, own), *said, *hooks]))}"
