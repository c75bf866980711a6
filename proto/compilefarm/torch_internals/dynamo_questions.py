"""What a trace asks of this process that it guards by nothing: attributes of modules, some builtins, packages that are
installed, functions whose results it keeps, and whether what it reaches in two ways is one object."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from torch._dynamo.variables import builder as _builder
from torch._dynamo.variables import functions as _functions  # torch/_dynamo/variables/functions.py
from torch._dynamo.variables import nn_module as _nn_module  # torch/_dynamo/variables/nn_module.py
from torch._dynamo.variables.builtin import BuiltinVariable as _Builtin  # torch/_dynamo/variables/builtin.py
from torch._dynamo.variables.constant import ConstantVariable as _Constant  # torch/_dynamo/variables/constant.py
from torch._dynamo.variables.dicts import ConstDictVariable as _Dictionary  # torch/_dynamo/variables/dicts.py
from torch._dynamo.variables.functions import SkipFunctionVariable as _NotTraced  # torch/_dynamo/variables/functions.py
from torch._dynamo.variables.lists import BaseListVariable as _List  # torch/_dynamo/variables/lists.py
from torch._dynamo.variables.misc import PythonModuleVariable as _Module  # torch/_dynamo/variables/misc.py
from torch._dynamo.variables.user_defined import (  # torch/_dynamo/variables/user_defined.py
    UserDefinedObjectVariable as _Object,
)

from compilefarm.torch_internals.dynamo_sources import Source

__all__ = [
    "watching_addresses",
    "watching_builtins",
    "watching_constant_results",
    "watching_modules",
    "watching_packages",
    "watching_texts",
    "watching_twice_reached",
]

# How an attribute of a module is looked up: hasattr has its own way until 2.14, and one name for both since.
_READS = ("tp_getattro_impl", "var_getattr", "call_obj_hasattr")
_Containers = (_Dictionary, _List)

_ASKED_OF_CLASSES = (isinstance, issubclass)
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
    """Has `on_call` called with each builtin that a trace calls, the code that calls it, and the classes that it is
    called with: the bases, where type makes one. For one thread at a time."""
    original = _Builtin.call_function

    def call_function(variable: Any, tx: Any, arguments: Sequence[Any], keywords: Any) -> Any:
        classes = arguments[1:] if variable.fn in _ASKED_OF_CLASSES else arguments[1:2] if variable.fn is type else ()
        on_call(variable.fn, tx.f_code, [each.as_python_constant() for each in classes if each.is_python_constant()])
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
