"""Calls whose results a trace takes for constants (torch.compiler.assume_constant_result).

Dynamo makes such a call while it traces, and guards by nothing what it returned. So it is written down, and made again
in the process that reuses the trace: a trace would make it there, too.
"""

from __future__ import annotations

import ast
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compilefarm.core.dynamo_packages import DependencyKind, DependencyRecord
from compilefarm.core.interruptions import raise_interruption
from compilefarm.reuse.description_texts import MISSING, name_of, shortened
from compilefarm.reuse.descriptions import Describer
from compilefarm.reuse.names_in_code import function_at
from compilefarm.reuse.refusals import Differs, Unsayable
from compilefarm.torch_internals.traced_functions import is_taken_for_constant

_LITERALS = (type(None), bool, int, str, bytes)


class ConstantResult(NamedTuple):
    """A call that was made while tracing, and what it returned."""

    function: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    result: Any

    def record(self, describer: Describer) -> DependencyRecord:
        """Returns the call and a description of its result as data.

        Raises:
            Unsayable: the call cannot be made again by what is written down, or the result has no description.
        """
        name = f"{name_of(self.function)}()"
        if function_at(self.function.__module__, self.function.__qualname__) is not self.function:
            raise Unsayable(f"{name}, whose result is taken for a constant, is not at its place")
        if not all(map(_is_literal, (*self.arguments, *self.keywords.values()))):
            raise Unsayable(f"{name}, whose result is taken for a constant, is called with objects")
        arguments = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.keywords.items())]
        return DependencyRecord(
            kind=DependencyKind.RESULT,
            module=self.function.__module__,
            name=f"{self.function.__qualname__}({', '.join(arguments)})",
            expected=shortened(describer.constant(self.result)),
        )


def describe_result(module: str, call: str, describer: Describer) -> str:
    """Makes a call that was written down, and describes what it returns in this process.

    Args:
        module: where the function is.
        call: of one of its functions, as Python, with literals for arguments.
        describer: of this moment.

    Raises:
        Differs: the call raises something.
        Unsayable: what it returns has no description.
    """
    try:
        expression = ast.parse(call, mode="eval").body
        if not isinstance(expression, ast.Call):
            return MISSING
        function = function_at(module, ast.unparse(expression.func))
        # No other function is called because a package says so.
        if not isinstance(function, types.FunctionType) or not is_taken_for_constant(function):
            return MISSING
        arguments = [ast.literal_eval(each) for each in expression.args]
        keywords = {str(each.arg): ast.literal_eval(each.value) for each in expression.keywords}
        result = function(*arguments, **keywords)
    except Exception as error:
        raise_interruption(error)
        # A trace would meet the same.
        raise Differs(f"{module}.{call} raises {type(error).__name__}: {error}") from error
    return shortened(describer.constant(result))


def _is_literal(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_literal, value))
    return type(value) in _LITERALS or (type(value) is float and math.isfinite(value))
