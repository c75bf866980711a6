"""Descriptions of what can be called and is no class: functions by their code, defaults and closures, methods, partial
functions, what C defines, operators of torch."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from typing import Any

from compilefarm.reuse.code_objects import digest_of_code, lines_of
from compilefarm.reuse.describing import Describes
from compilefarm.reuse.description_texts import name_of, shortened
from compilefarm.reuse.module_descriptions import describe_chain
from compilefarm.reuse.names_in_code import chains_of, is_file_of_a_release, is_of_a_release
from compilefarm.reuse.operator_descriptions import describe_operator
from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.dynamo_frames import ADDRESS_OF_WRAPPED, NOT_TRACED_FORM
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket

# By which place of a tuple it finds, it says nowhere but where it is pickled; so do those of operator.
_FIELD_OF_NAMED_TUPLES = type(vars(inspect.ArgInfo)["args"])
FINDING = (_FIELD_OF_NAMED_TUPLES, operator.itemgetter, operator.attrgetter)


def describe_function(describer: Describes, function: types.FunctionType) -> str:
    """Describes a function by its code and what it holds."""
    code = function.__code__
    describer.codes.add(code)
    name = f"{function.__module__}.{function.__qualname__}"
    parts = [name, digest_of_code(code), *describer.annotations.said_of_itself(function)]
    # Most have none of these.
    if defaults := function.__defaults__:
        parts += [describer.member(each) for each in defaults]
    if named := function.__kwdefaults__:
        parts += [f"{name}={describer.member(each)}" for name, each in sorted(named.items())]
    if cells := function.__closure__:
        parts += [_cell(describer, cell) for cell in cells]
    if own := function.__dict__:
        passed_over = {
            ADDRESS_OF_WRAPPED,
            *((NOT_TRACED_FORM,) if is_of_a_release(own.get(NOT_TRACED_FORM)) else ()),
        }
        parts += [f"{name}={describer.member(own[name])}" for name in sorted(own.keys() - passed_over)]
    owner = describer.modules.owner_of_globals(code, function.__globals__)
    if not owner:
        # What it names is in no module that its code leads to.
        chains = sorted(set(chains_of(code)))
        parts += [f"{chain}={describe_chain(describer, function.__globals__, chain)}" for chain in chains]
    elif owner != function.__module__:
        parts.append(f"globals of {owner}")
    return f"function:{name}:{shortened(chr(10).join(parts))}"


def describe_method(describer: Describes, method: types.MethodType) -> str:
    """Describes a method by its function and the object that it is bound to."""
    owner = method.__self__
    number = "" if isinstance(owner, type) else describer.number_of(owner)
    return f"method:{describer.identity(method.__func__)}@{describer.of_place(owner)}@{number}"


def describe_partial(describer: Describes, partial: functools.partial[Any]) -> str:
    """Describes a function of which some arguments are given."""
    keywords = [f"{name}={describer.member(value)}" for name, value in sorted(partial.keywords.items())]
    function = describer.identity(partial.func)
    return f"partial:{function}:{describer.all_members(list(partial.args))}:{','.join(keywords)}"


def describe_c_callable(describer: Describes, value: Any) -> str:
    """Describes what C defines by where it is, and what it is bound to."""
    bound = getattr(value, "__self__", None)
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    is_function = vars(module).get(value.__name__) is value if module is not None else False
    if bound is None or is_function or isinstance(bound, (types.ModuleType, type)):
        return _place_of(value)
    # What it is a method of is an argument that no guard may tell.
    if isinstance(bound, (set, frozenset)):
        return f"{_place_of(value)}@{sorted(map(describer.constant, bound))}"
    told = describer.constant(list(bound.items()) if isinstance(bound, dict) else bound)
    return f"{_place_of(value)}@{told}"


def describe_finding(describer: Describes, value: Any) -> str:
    """Describes what finds an attribute or an item of its argument."""
    # What else there is to it is a documentation.
    kind, arguments = type(value), value.__reduce__()[1]
    told = arguments[:1] if kind is _FIELD_OF_NAMED_TUPLES else arguments
    return f"{kind.__qualname__}({describer.all_members(list(told))})"


def describe_operator_of_torch(describer: Describes, operator: OpOverload | OpOverloadPacket) -> str:
    """Describes an operator by what is registered for it."""
    return describe_operator(operator, describe=describer.of_calls.identity, constant=describer.of_calls.constant)


def describe_code(_: Describes, code: types.CodeType) -> str:
    """Describes a code object that a program holds or asks for: it may ask that where in which file it is written."""
    file = "" if is_file_of_a_release(code.co_filename) else code.co_filename
    return f"code:{digest_of_code(code)}:{shortened(f'{file}:{code.co_firstlineno}:{lines_of(code)}')}"


def refuse_script(_: Describes, value: Any) -> str:
    """Refuses a function that torch.jit compiled, of which Python has no code.

    Raises:
        Unsayable: always.
    """
    raise Unsayable(f"a function that torch.jit compiled ({getattr(value, 'name', '')})")


def _cell(describer: Describes, cell: types.CellType) -> str:
    # What two functions share, one changes for the other.
    try:
        return f"{describer.number_of(cell)}:{describer.member(cell.cell_contents)}"
    except ValueError:
        return "empty"


def _place_of(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    place = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__qualname__
    if isinstance(owner, type):
        place = name_of(owner)
    return f"builtin:{place}:{getattr(value, '__qualname__', value.__name__)}"
