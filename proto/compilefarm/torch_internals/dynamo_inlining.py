"""Which functions Dynamo traces into, and what it calls them with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from torch._dynamo.symbolic_convert import InliningInstructionTranslator as _Translator
from torch._dynamo.variables.constant import ConstantVariable as _Constant  # torch/_dynamo/variables/constant.py


class NotConstant:
    """Stands for an argument that is no constant, or whose value Dynamo does not know yet."""


@contextlib.contextmanager
def watching_inlined_calls(on_call: Callable[[CodeType, Sequence[Any]], None]) -> Iterator[None]:
    """Has `on_call` called with the code of each function that is traced into, and its positional arguments.

    For one thread at a time: Dynamo traces under a lock (torch/_dynamo/convert_frame.py: compile_lock).
    """
    original = _Translator.build_inline_tracer  # torch/_dynamo/symbolic_convert.py

    def build_inline_tracer(parent: Any, function: Any, arguments: Sequence[Any], *others: Any, **keywords: Any) -> Any:
        on_call(function.get_code(), [_constant_of(each) for each in arguments])
        return original(parent, function, arguments, *others, **keywords)

    translator: Any = _Translator
    translator.build_inline_tracer = staticmethod(build_inline_tracer)
    try:
        yield
    finally:
        translator.build_inline_tracer = staticmethod(original)


def _constant_of(variable: Any) -> Any:
    if not hasattr(variable, "is_realized"):
        # Functions that compute the grid of a Triton kernel are given a plain dictionary
        # (torch/_higher_order_ops/triton_kernel_wrap.py).
        return NotConstant
    # Dynamo makes inputs of a graph in the order in which it first looks at values (torch/_dynamo/variables/lazy.py).
    # To look at one before it does would give another graph than a trace has that nobody watches.
    if not variable.is_realized():
        value = variable.peek_value()
        return value if isinstance(value, str | bytes) else NotConstant
    known = variable.realize()
    return known.value if type(known) is _Constant else NotConstant
