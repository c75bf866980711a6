"""Kernels that users write in Triton, as data: source of their functions, what it refers to, and how it is tuned."""

from __future__ import annotations

import builtins
import importlib
import io
import symtable
import tokenize
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.literals import ValueEncoder
from compilefarm.graph.texts import is_name
from compilefarm.torch_internals.triton_kernels import is_autotuner, is_constexpr_function, is_jit_function
from compilefarm.v1.graph_pb2 import (
    NamedTritonConstant,
    TritonConfiguration,
    TritonConstant,
    TritonFunction,
    TritonGlobal,
    TritonKernel,
)

# Python's own module that Triton lets kernels use (triton/runtime/jit.py: DependenciesFinder.supported_modules).
MATH = "math"
_LAYOUT_TOKENS = frozenset(
    {tokenize.COMMENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE, tokenize.NL}
)
# triton/runtime/autotuner.py: what a Config holds beside arguments of the kernel.
_CONFIGURED = {"num_warps": "warps", "num_stages": "stages", "num_ctas": "blocks", "maxnreg": "registers"}


def is_module_of_triton(name: str) -> bool:
    """Whether kernels may refer to a module, by its name."""
    return name in ("triton", MATH) or name.startswith("triton.")


def describe_kernel(kernel: Any) -> TritonKernel:
    """A kernel, with all that it calls and refers to.

    Args:
        kernel: what @triton.jit or @triton.autotune made of a function.

    Raises:
        Bypass: it cannot be said.
    """
    described = TritonKernel()
    if is_autotuner(kernel):
        _describe_tuning(kernel, described)
        kernel = kernel.fn
    if not is_jit_function(kernel):
        raise _bypass(f"a kernel is a {type(kernel).__module__}.{type(kernel).__qualname__}")
    if kernel.pre_run_hooks:
        raise _bypass(f"{kernel.__name__} has hooks that run before it")
    closure = _Closure()
    closure.add(kernel)
    first, *others = closure.functions.values()
    described.functions.extend([first, *sorted(others, key=lambda function: function.name)])
    described.globals.extend(closure.globals[name] for name in sorted(closure.globals))
    return described


def write_constants(constants: Mapping[str, object], *, into: Any, what: str) -> None:
    """Writes values that are known while a kernel is compiled, sorted by name.

    Raises:
        Bypass: one cannot be said.
    """
    for name in sorted(constants):
        into.append(NamedTritonConstant(name=name, constant=_constant(constants[name], what=f"{name} of {what}")))


class _Closure:
    """The functions of a kernel and what they refer to."""

    def __init__(self) -> None:
        self.functions: dict[str, TritonFunction] = {}
        self.globals: dict[str, TritonGlobal] = {}
        self._seen: dict[str, Any] = {}

    def add(self, function: Any) -> None:
        name = function.__name__
        if not is_name(name):
            raise _bypass(f"{name} is no name in ASCII")
        if name in self.globals or self._seen.setdefault(name, function) is not function:
            raise _bypass(f"two things that a kernel refers to are called {name}")
        if name in self.functions:
            return
        if function.fn.__closure__:
            raise _bypass(f"{name} refers to variables of the function that it is defined in")
        self.functions[name] = _describe_function(function)
        for referred, meaning in _references(function):
            self._refer(referred, meaning, function=name)

    def _refer(self, name: str, meaning: Any, *, function: str) -> None:
        is_function = is_jit_function(meaning) or is_constexpr_function(meaning)
        if is_function and not is_module_of_triton(meaning.__module__):
            if meaning.__name__ != name:
                raise _bypass(f"{function} refers to the function {meaning.__name__} as {name}")
            self.add(meaning)
            return
        described = _describe_global(name, meaning, function=function)
        if name in self.functions or self.globals.setdefault(name, described) != described:
            raise _bypass(f"two things that a kernel refers to are called {name}")


def _describe_function(function: Any) -> TritonFunction:
    described = TritonFunction(name=function.__name__, source=_without_comments(function.src))
    if is_constexpr_function(function):
        described.runs_in_python = True
        return described
    described.unspecialized.extend(given.name for given in function.params if given.do_not_specialize)
    described.unaligned.extend(given.name for given in function.params if given.do_not_specialize_on_alignment)
    described.noinline = bool(function.noinline)
    return described


def _without_comments(source: str) -> str:
    """The lines of a function that say something, as they are: Triton and Inductor read them."""
    lines = source.splitlines()
    busy: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, column = token.start
        if token.type == tokenize.COMMENT:
            lines[line - 1] = lines[line - 1][:column].rstrip()
        if token.type not in _LAYOUT_TOKENS:
            busy.update(range(line, token.end[0] + 1))
    return "\n".join(line for number, line in enumerate(lines, start=1) if number in busy)


def _references(function: Any) -> Iterator[tuple[str, Any]]:
    """What the names in a function mean outside of it, annotations and defaults of its parameters included."""
    defined = function.fn.__globals__
    for name in sorted(set(_global_names(symtable.symtable(function.src, "<kernel>", "exec")))):
        # Triton itself says of a name that nobody knows that it is not defined.
        if name in defined and not (hasattr(builtins, name) and defined[name] is getattr(builtins, name)):
            yield name, defined[name]


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced())
    for below in table.get_children():
        yield from _global_names(below)


def _describe_global(name: str, meaning: Any, *, function: str) -> TritonGlobal:
    if isinstance(meaning, ModuleType):
        if is_module_of_triton(meaning.__name__):
            return TritonGlobal(name=name, module=meaning.__name__)
        raise _bypass(f"{function} refers to the module {meaning.__name__}")
    module, member = getattr(meaning, "__module__", ""), getattr(meaning, "__name__", "")
    is_member = is_module_of_triton(module) and getattr(importlib.import_module(module), member, None) is meaning
    if is_member:
        return TritonGlobal(name=name, member=f"{module}:{member}")
    return TritonGlobal(name=name, constant=_constant(meaning, what=f"{name}, which {function} refers to,"))


def _constant(value: Any, *, what: str) -> TritonConstant:
    language: Any = importlib.import_module("triton.language")
    if type(value) is language.constexpr:
        wrapped = _constant(value.value, what=what)
        wrapped.constexpr = True
        return wrapped
    if type(value) is language.dtype:
        return TritonConstant(dtype=value.name)
    described = TritonConstant()
    try:
        ValueEncoder(numbers={}, devices=None).write(value, into=described.value)
    except Bypass as error:
        raise _bypass(f"{what} is no constant that can be sent: {error}") from error
    return described


def _describe_tuning(tuner: Any, described: TritonKernel) -> None:
    name = tuner.base_fn.__name__
    hooks = (tuner.user_defined_pre_hook, tuner.user_defined_post_hook, tuner.perf_model, tuner.early_config_prune)
    if any(hooks):
        raise _bypass(f"the tuning of {name} calls functions of the user's own")
    described.tuning.key.extend(tuner.keys)
    described.tuning.reset_to_zero.extend(tuner.reset_to_zero)
    described.tuning.restore_value.extend(tuner.restore_value)
    for config in tuner.configs:
        described.tuning.configurations.append(_describe_config(config, name=name))


def _describe_config(config: Any, *, name: str) -> TritonConfiguration:
    described = TritonConfiguration()
    for option, value in vars(config).items():
        if option == "kwargs":
            write_constants(value, into=described.arguments, what=f"a configuration of {name}")
        elif option in _CONFIGURED and type(value) is int and 0 < value < 2**32:
            setattr(described, _CONFIGURED[option], value)
        elif value is not None:
            raise _bypass(f"a configuration of {name} sets {option} to {value!r:.80}")
    return described


def _bypass(message: str) -> Bypass:
    return Bypass("triton_kernel", message)
