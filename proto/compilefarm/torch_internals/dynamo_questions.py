"""What a trace asks of this process that it guards by nothing: attributes of modules, some builtins, packages that are
installed, functions whose results it keeps, and whether what it reaches in two ways is one object."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch._dynamo.source import ConstantSource as _Constants  # torch/_dynamo/source.py
from torch._dynamo.variables import FrozensetVariable as _Frozenset  # torch/_dynamo/variables/__init__.py
from torch._dynamo.variables import TracebackVariable as _Traceback  # torch/_dynamo/variables/__init__.py
from torch._dynamo.variables import builder as _builder
from torch._dynamo.variables import functions as _functions  # torch/_dynamo/variables/functions.py
from torch._dynamo.variables import nn_module as _nn_module  # torch/_dynamo/variables/nn_module.py
from torch._dynamo.variables.builtin import BuiltinVariable as _Builtin  # torch/_dynamo/variables/builtin.py
from torch._dynamo.variables.constant import ConstantVariable as _Constant  # torch/_dynamo/variables/constant.py
from torch._dynamo.variables.dicts import ConstDictVariable as _Dictionary  # torch/_dynamo/variables/dicts.py
from torch._dynamo.variables.functions import SkipFunctionVariable as _NotTraced  # torch/_dynamo/variables/functions.py
from torch._dynamo.variables.lists import BaseListVariable as _List  # torch/_dynamo/variables/lists.py
from torch._dynamo.variables.misc import PythonModuleVariable as _Module  # torch/_dynamo/variables/misc.py
from torch._dynamo.variables.tensor import UntypedStorageVariable as _Storage  # torch/_dynamo/variables/tensor.py
from torch._dynamo.variables.user_defined import (  # torch/_dynamo/variables/user_defined.py
    UserDefinedObjectVariable as _Object,
)

from compilefarm.torch_internals.dynamo_sources import Source

__all__ = [
    "NAMES_OF_FRAMES",
    "watching_addresses",
    "watching_builtins",
    "watching_constant_results",
    "watching_lines",
    "watching_modules",
    "watching_orders",
    "watching_packages",
    "watching_reads",
    "watching_storages",
    "watching_texts",
    "watching_twice_reached",
]

# How an attribute of a module is looked up: hasattr has its own way until 2.14, and one name for both since.
_READS = ("tp_getattro_impl", "var_getattr", "call_obj_hasattr")
_Containers = (_Dictionary, _List)
# Sets of all kinds, also where they are constants, and which of their methods say nothing of the order of members
# (torch/_dynamo/variables/dicts.py until 2.12, sets.py later).
_Sets = {each for each in (_Frozenset, *_Frozenset.__mro__) if each.__name__ in ("BaseSetVariable", "SetVariable")}
_WITHOUT_ORDER = frozenset(
    {
        "__init__", "__contains__", "add", "check_verbose", "clear", "discard", "is_python_constant", "isdisjoint",
        "realize_key_vt", "remove", "sq_length_impl", "tp_richcompare_impl", "vt_identity_compare",
    }
)  # fmt: skip
# How the general method for all others is told which one it stands for, and those of its that say nothing of the order.
_BY_NAME = "call_method"
_COMPARISONS = frozenset({"__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"})
# Where a trace makes sets (torch/_dynamo/symbolic_convert.py, variables/builtin.py, variables/sets.py).
_MAKING_SETS = frozenset({"BUILD_SET", "call_set", "call_frozenset", "_new_set"})
# Where Python is given a set, which has the order of this process.
_OF_PYTHON = frozenset({"set_items", "as_python_constant"})
# Where Dynamo may ask no more than which object it is, or whether it traces a function that holds it
# (torch/_dynamo/variables/base.py, torch/_dynamo/trace_rules.py).
_WITHIN_FUNCTIONS = frozenset({"guarded_method", "get_function", "_get_function_impl", "get_real_python_backed_value"})
# Where a set that is written in code takes its members, which Python keeps in a constant of its own, a set, too
# (torch/_dynamo/symbolic_convert.py, variables/base.py, variables/sets.py).
_OF_LITERALS = "SET_UPDATE"
_TAKING_MEMBERS = frozenset({"update", "_operand_keys", "__call__", _BY_NAME})
# By these names it is told what asks for the members of a set: a release that has others is to be looked at.
NAMES_OF_FRAMES = _WITHOUT_ORDER | _MAKING_SETS | _OF_PYTHON | _WITHIN_FUNCTIONS | {_OF_LITERALS, *_TAKING_MEMBERS}

# Which arguments of a builtin say what it is asked about.
_ASKED: Mapping[Any, slice] = {isinstance: slice(1, 2), issubclass: slice(1, 2), type: slice(1, 2), dir: slice(1)}
# They are called while tracing, and what they return is a constant (torch/_dynamo/variables/functions.py).
_ASKED_OF_PACKAGES = (importlib.util.find_spec, importlib.metadata.version)


@contextlib.contextmanager
def watching_modules(on_read: Callable[[ModuleType, str], None]) -> Iterator[None]:
    """Has `on_read` called with each module that a trace asks for an attribute, and the attribute, also if there is
    none. For one thread at a time: Dynamo traces under a lock."""
    with contextlib.ExitStack() as stack:
        for method in [each for each in _READS if each in vars(_Module)]:
            original = getattr(_Module, method)

            def read(variable: Any, tx: Any, name: str, *, _original: Callable[..., Any] = original) -> Any:
                on_read(variable.value, name)
                return _original(variable, tx, name)

            stack.enter_context(_replaced(_Module, method, read))
        yield


@contextlib.contextmanager
def watching_builtins(on_call: Callable[[object, CodeType, Sequence[Any]], None]) -> Iterator[None]:
    """Has `on_call` called with each builtin that a trace calls, the code that calls it, and what it is asked about:
    classes, the bases where type makes one, and what dir lists. For one thread at a time."""
    original = _Builtin.call_function

    def call_function(variable: Any, tx: Any, arguments: Sequence[Any], keywords: Any) -> Any:
        asked = next((arguments[place] for function, place in _ASKED.items() if variable.fn is function), ())
        on_call(variable.fn, tx.f_code, [each.as_python_constant() for each in asked if each.is_python_constant()])
        return original(variable, tx, arguments, keywords)

    with _replaced(_Builtin, "call_function", call_function):
        yield


@contextlib.contextmanager
def watching_addresses(on_object: Callable[[Source], None]) -> Iterator[None]:
    """Has `on_object` called with the source of each object whose address a trace asks for, and whose content it
    guards piece by piece. For one thread at a time."""
    original = _Builtin.call_function

    def call_function(variable: Any, tx: Any, arguments: Sequence[Any], keywords: Any) -> Any:
        result = original(variable, tx, arguments, keywords)
        for each in arguments if variable.fn is id else ():
            known = each.realize() if each.is_realized() else each
            if (type(known) is _Object or isinstance(known, _Containers)) and known.source is not None:
                on_object(known.source)
        return result

    with _replaced(_Builtin, "call_function", call_function):
        yield


@contextlib.contextmanager
def watching_packages(on_call: Callable[[Callable[..., Any], Sequence[Any]], None]) -> Iterator[None]:
    """Has `on_call` called with each function that a trace asks for an installed package, and its arguments in the
    order of its parameters. For one thread at a time."""
    original = _NotTraced.call_function

    def call_function(variable: Any, tx: Any, arguments: Sequence[Any], keywords: Any) -> Any:
        if variable.value in _ASKED_OF_PACKAGES:
            names = list(inspect.signature(variable.value).parameters)[len(arguments) :]
            given = [*arguments, *(keywords[name] for name in names if name in keywords)]
            if all(each.is_python_constant() for each in given):
                on_call(variable.value, [each.as_python_constant() for each in given])
        return original(variable, tx, arguments, keywords)

    with _replaced(_NotTraced, "call_function", call_function):
        yield


@contextlib.contextmanager
def watching_constant_results(
    on_result: Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any], None],
) -> Iterator[None]:
    """Has `on_result` called with each function that a trace calls and whose result it keeps, its arguments by place
    and by keyword, and the result. For one thread at a time."""
    original = _functions.invoke_and_store_as_constant

    def invoke(tx: Any, function: Callable[..., Any], *others: Any) -> Any:
        def heard(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            on_result(function, arguments, keywords, result)
            return result

        return original(tx, heard, *others)

    with contextlib.ExitStack() as stack:
        for owner in (_functions, _nn_module):
            stack.enter_context(_replaced(owner, "invoke_and_store_as_constant", invoke))
        yield


@contextlib.contextmanager
def watching_reads(on_read: Callable[[object, Source], None]) -> Iterator[None]:
    """Has `on_read` called with the source of each value that a trace looks at, guarded or not, and before it with the
    attempt: Dynamo begins anew where it finds that a graph has to break. For one thread at a time."""
    original = _builder.VariableBuilder._wrap

    def wrap(builder: Any, value: object) -> Any:
        # What a trace keeps for itself is at no place of the program.
        if builder.source is not None and not isinstance(builder.source, _Constants):
            on_read(builder.tx.output, builder.source)
        return original(builder, value)

    with _replaced(_builder.VariableBuilder, "_wrap", wrap):
        yield


@contextlib.contextmanager
def watching_orders(on_order: Callable[[Source | None], None]) -> Iterator[None]:
    """Has `on_order` called whenever a trace may find in which order this process has the members of a set, if it has
    several: with the source of the set, or None if the trace has made it. For one thread at a time."""

    made: dict[int, Any] = {}

    def members(variable: Any) -> Any:
        found = vars(variable)["items"]
        asking = sys._getframe(1)
        names = [asking.f_code.co_name]
        # Expressions that go through something have frames of their own.
        while asking.f_back is not None and (names[-1].startswith("<") or names[-1] in _OF_PYTHON | _WITHIN_FUNCTIONS):
            asking = asking.f_back
            names.append(asking.f_code.co_name)
        if (literal := _literal_under_way(asking)) is not None:
            # Its members are in the order of that constant from now on, for which it is asked once somebody takes it.
            made.pop(id(literal), None)
            return found
        is_asked = len(found) > 1 and names[-1] not in _WITHOUT_ORDER and not _compares(asking)
        is_in_order = id(variable) in made and _OF_PYTHON.isdisjoint(names)
        is_alike = variable.source is None and all(map(_is_whole_number, found))
        if is_asked and not is_in_order and not is_alike:
            on_order(variable.source)
        return found

    def keep(variable: Any, found: Any) -> None:
        if "items" not in vars(variable) and _is_made_by_program():
            made[id(variable)] = variable
        vars(variable)["items"] = found

    for kind in _Sets:
        kind.items = property(members, keep)
    try:
        yield
    finally:
        for kind in _Sets:
            del kind.items


def _literal_under_way(frame: FrameType | None) -> Any:
    """The set that is written in code and takes the members that a frame asks for; None if there is none."""
    while frame is not None and frame.f_code.co_name in _TAKING_MEMBERS:
        frame = frame.f_back
    return frame.f_locals["obj"] if frame is not None and frame.f_code.co_name == _OF_LITERALS else None


def _compares(frame: FrameType) -> bool:
    """Whether a frame asks for the members of sets to compare them (until 2.12)."""
    return frame.f_code.co_name == _BY_NAME and frame.f_locals.get("name") in _COMPARISONS


def _is_whole_number(member: Any) -> bool:
    """Whether a member of a set has the same hash in every process."""
    constant = getattr(member, "vt", None)
    return isinstance(constant, _Constant) and type(constant.value) is int


def _is_made_by_program() -> bool:
    """Whether a set is being made by what is traced, one member after the other: Dynamo keeps them in that order, which
    is nobody's own. To be called where the members are set."""
    frame: FrameType | None = sys._getframe(2)
    given: object = None
    while frame is not None and frame.f_code.co_name == "__init__":
        given, frame = frame.f_locals.get("items", given), frame.f_back
    is_in_order = isinstance(given, (list, dict)) or (isinstance(given, (set, frozenset)) and not given)
    return is_in_order and frame is not None and frame.f_code.co_name in _MAKING_SETS


@contextlib.contextmanager
def watching_storages(on_storage: Callable[[], None]) -> Iterator[None]:
    """Has `on_storage` called whenever a trace looks at the storage of a tensor, whose size it takes for a constant.
    For one thread at a time."""
    original = _Storage.__init__

    def init(variable: Any, *arguments: Any, **keywords: Any) -> None:
        on_storage()
        original(variable, *arguments, **keywords)

    with _replaced(_Storage, "__init__", init):
        yield


@contextlib.contextmanager
def watching_texts(on_text: Callable[[str], None]) -> Iterator[None]:
    """Has `on_text` called with each text that a trace takes for a constant: those that are written somewhere, and what
    objects say of themselves. For one thread at a time."""
    original = _Constant.__init__

    def init(variable: Any, value: Any = None, **others: Any) -> None:
        if type(value) is str:
            on_text(value)
        original(variable, value, **others)

    with _replaced(_Constant, "__init__", init):
        yield


class _ReadSummary:
    """Where an exception was raised, which says so when it is asked for more than the name of the function."""

    def __init__(self, summary: Any, on_line: Callable[[], None]) -> None:
        self._summary = summary
        self._on_line = on_line

    def __getattr__(self, name: str) -> Any:
        if name != "name":
            self._on_line()
        return getattr(self._summary, name)


@contextlib.contextmanager
def watching_lines(on_line: Callable[[], None]) -> Iterator[None]:
    """Has `on_line` called whenever a trace reads the line or the file in which an exception was raised. For one thread
    at a time."""
    original = _Traceback.__init__

    def init(variable: Any, frame_summary: Any, *others: Any, **named: Any) -> None:
        frame_summary.frame_summary = _ReadSummary(frame_summary.frame_summary, on_line)
        original(variable, frame_summary, *others, **named)

    with _replaced(_Traceback, "__init__", init):
        yield


@contextlib.contextmanager
def watching_twice_reached(on_object: Callable[[Source, Source], None]) -> Iterator[None]:
    """Has `on_object` called with two sources of an object that a trace takes for one without a guard: one among the
    arguments and one among the globals. For one thread at a time."""
    original = _builder.make_dupe_guard  # torch/_dynamo/guards.py

    def make_dupe_guard(source: Any, known: Any) -> Any:
        guard = original(source, known)
        if guard is None and known is not None and known != source:
            on_object(source, known)
        return guard

    with _replaced(_builder, "make_dupe_guard", make_dupe_guard):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
