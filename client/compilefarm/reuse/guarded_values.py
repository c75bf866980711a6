"""What each kind of guard rests on, as a description of the value that it is on.

A kind that is not listed is not known to be described faithfully, and a trace with such a guard is not recorded.
"""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compilefarm.reuse.collection_descriptions import NO_KEYS
from compilefarm.reuse.description_texts import name_of
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.dynamo_guards import (
    TracedGuard,
    dispatch_keys,
    is_copy_on_write,
    notes_of,
    range_of_iterator,
    tuple_iterator_length,
)
from compilefarm.torch_internals.dynamo_sources import Source

_Arguments = Mapping[str, Any]
_Describe = Callable[[Describer, Any, _Arguments], str]

# Of guards that are on no value: what they compare is recorded as a state of the process (states.py), or it relates
# values of the same process, so that building them makes them right.
WITHOUT_VALUE = frozenset(
    {
        "AUTOGRAD_SAVED_TENSORS_HOOKS",
        "DEFAULT_DEVICE",
        "DETERMINISTIC_ALGORITHMS",
        "DUAL_LEVEL",
        "FSDP_TRAINING_STATE",
        "FUNCTORCH_STACK_MATCH",
        "GLOBAL_STATE",
        "GRAD_MODE",
        "SHAPE_ENV",
        "TORCH_FUNCTION_STATE",
    }
)


def is_on_value(guard: TracedGuard) -> bool:
    """Whether what a guard compares is a value that its source leads to."""
    return guard.kind not in WITHOUT_VALUE


def describe_guarded(guard: TracedGuard, value: Any, describer: Describer) -> str:
    """Describes what a guard finds.

    Args:
        guard: on a value (`on_value`).
        value: that its source leads to.
        describer: of this moment.

    Raises:
        Unsayable: there is no faithful description.
    """
    describe = _DESCRIPTIONS.get(guard.kind)
    if describe is None:
        raise Unsayable(f"a guard of kind {guard.kind}")
    text = describe(describer, value, guard.arguments)
    return f"{text}:{_notes(describer, value, guard.source)}" if guard.kind == "TENSOR_MATCH" else text


def _place(describer: Describer, value: Any, _: _Arguments) -> str:
    if isinstance(value, random.Random):
        # Dynamo draws from a copy, in the state that this process has.
        raise Unsayable("a generator of random numbers, whose state is in the trace")
    return describer.of_place(value)


def _constant(describer: Describer, value: Any, _: _Arguments) -> str:
    return describer.constant(value)


def _identity(describer: Describer, value: Any, _: _Arguments) -> str:
    if isinstance(value, torch.Tensor):
        raise Unsayable("a tensor that has to be the same object")
    return describer.identity(value)


def _address(describer: Describer, value: Any, arguments: _Arguments) -> str:
    try:
        return _identity(describer, value, arguments)
    except Unsayable:
        if isinstance(value, torch.Tensor):
            raise
        # Who records this has seen that the address alone was asked for (Capture).
        return f"at:{describer.of_place(value)}"


def _length(describer: Describer, value: Any, _: _Arguments) -> str:
    kind = type(value)
    if kind is OrderedDict and not value:
        # A third of all guards: modules have such for hooks of many kinds.
        return f"{describer.of_class(kind)}:0{NO_KEYS}"
    order = describer.of_order(list(value)) if isinstance(value, dict) else ""
    return f"{describer.of_class(kind)}:{len(value)}{order}"


def _keys(describer: Describer, value: Any, _: _Arguments) -> str:
    # dict.keys does not know what move_to_end has done.
    keys = list(value) if isinstance(value, OrderedDict) else dict.keys(value)
    return f"[{','.join(describer.constant(each) for each in keys)}]"


def _mapping_keys(describer: Describer, value: Any, _: _Arguments) -> str:
    return f"[{','.join(describer.constant(each) for each in value)}]"


def _attribute(_: Describer, value: Any, arguments: _Arguments) -> str:
    # Torch 2.11 has the attribute in the source, which was followed.
    return str("attr" not in arguments or hasattr(value, arguments["attr"]))


def _not_present(_: Describer, value: Any, arguments: _Arguments) -> str:
    return str(arguments["attr"] in value.__dict__)


def _contains(_: Describer, value: Any, arguments: _Arguments) -> str:
    return str(arguments["key"] in value)


def _iterator(describer: Describer, value: Any, _: _Arguments) -> str:
    return f"{describer.of_class(type(value))}:{tuple_iterator_length(value)}"


def _range_iterator(describer: Describer, value: Any, _: _Arguments) -> str:
    return f"{describer.of_class(type(value))}:{range_of_iterator(value)}"


def _count(describer: Describer, value: Any, _: _Arguments) -> str:
    # Which numbers come, it says itself.
    return f"{describer.of_class(type(value))}:{itertools.count.__repr__(value)}"


def _presence(_: Describer, value: Any, __: _Arguments) -> str:
    return str(value is not None)


def _copy_on_write(_: Describer, value: Any, __: _Arguments) -> str:
    return str(is_copy_on_write(value))


def _same_object(_: Describer, __: Any, ___: _Arguments) -> str:
    return "same"


def _tensor(_: Describer, value: Any, __: _Arguments) -> str:
    kind = type(value)
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise Unsayable(f"a tensor of class {name_of(kind)}")
    facts = (value.dtype, value.device, value.layout, value.requires_grad, value.dim(), value.is_leaf)
    return f"{name_of(kind)}:{','.join(map(str, facts))}:{dispatch_keys(value)}"


def _notes(describer: Describer, tensor: torch.Tensor, source: Source) -> str:
    notes = sorted(notes_of(tensor, source).items())
    said = ",".join(f"{name}={describer.of_content(value)}" for name, value in notes)
    # Which inputs are one tensor, guards do not see everywhere (verification.py).
    return f"{said}@{describer.number_of(tensor)}:{describer.memory.describe(tensor)}"


_DESCRIPTIONS: dict[str, _Describe] = {
    "BOOL_MATCH": _constant,
    "BUILTIN_MATCH": _identity,
    "CLASS_MATCH": _identity,
    "CLOSURE_MATCH": _identity,
    "CONSTANT_MATCH": _constant,
    "CONSTANT_SUBCLASS_MATCH": _constant,
    "COUNT_ITERATOR_MATCH": _count,
    "COW_TENSOR_MATCH": _copy_on_write,
    "DICT_CONTAINS": _contains,
    "DICT_KEYS_MATCH": _keys,
    "DICT_NOT_CONTAINS": _contains,
    "DUPLICATE_INPUT": _same_object,
    "EMPTY_NN_MODULE_HOOKS_DICT": _length,
    "EQUALS_MATCH": _constant,
    "FUNCTION_MATCH": _identity,
    "HASATTR": _attribute,
    "ID_MATCH": _address,
    "MAPPING_KEYS_CHECK": _mapping_keys,
    "MODULE_MATCH": _identity,
    "NONE_MATCH": _constant,
    "NOT_NONE_MATCH": _presence,
    "NOT_PRESENT_IN_GENERIC_DICT": _not_present,
    "RANGE_ITERATOR_MATCH": _range_iterator,
    "SEQUENCE_LENGTH": _length,
    "SET_CONTAINS": _contains,
    "SET_NOT_CONTAINS": _contains,
    "TENSOR_MATCH": _tensor,
    "TUPLE_ITERATOR_LEN": _iterator,
    "TYPE_MATCH": _place,
    "WEAKREF_ALIVE": _presence,
}
