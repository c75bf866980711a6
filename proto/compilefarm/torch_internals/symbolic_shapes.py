"""Numbers that differ from call to call: torch's symbols, and the operations of their expressions."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource  # torch/_dynamo/source.py
from torch.fx.experimental.sym_node import SymNode  # torch/fx/experimental/sym_node.py
from torch.fx.experimental.symbolic_shapes import (  # torch/fx/experimental/symbolic_shapes.py
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    compute_unbacked_bindings,
)
from torch.utils._sympy.functions import (  # torch/utils/_sympy/functions.py
    CeilToInt,
    CleanDiv,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    Identity,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.functions import (
    OpaqueUnaryFn_log2 as Log2,
)
from torch.utils._sympy.functions import (
    OpaqueUnaryFn_sqrt as SquareRoot,
)
from torch.utils._sympy.numbers import int_oo  # torch/utils/_sympy/numbers.py

__all__ = [
    "CeilToInt",
    "CleanDiv",
    "FloatPow",
    "FloatTrueDiv",
    "FloorDiv",
    "FloorToInt",
    "GuardOnDataDependentSymNode",
    "Identity",
    "IntTrueDiv",
    "Log2",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "PowByNatural",
    "PythonMod",
    "RoundToInt",
    "ShapeEnv",
    "SquareRoot",
    "ToFloat",
    "TruncToInt",
    "bindings_of",
    "create_symbol",
    "is_single_number",
    "sym_log2",
    "unbacked_floats_of",
    "unreplaced_symbol",
]

# torch/__init__.py: _get_sym_math_fn
sym_log2 = torch._sym_log2

# What torch calls symbols of floats that a graph reads of tensors, numbered in the order in which they are made
# (torch/fx/experimental/symbolic_shapes.py: create_unbacked_symfloat).
_UNBACKED_FLOAT = re.compile(r"zuf(\d+)")


def unbacked_floats_of(error: GuardOnDataDependentSymNode) -> set[int]:
    """Numbers of the floats, in the order in which a graph has read them of tensors, that torch had to know."""
    names = (_UNBACKED_FLOAT.fullmatch(str(symbol)) for symbol in error.cond.free_symbols)
    return {int(name[1]) for name in names if name is not None}


def create_symbol(
    env: ShapeEnv, name: str, *, hint: int, lower: int | None, upper: int | None
) -> tuple[sympy.Symbol, torch.SymInt]:
    """A new symbol, as Dynamo makes them for sizes, and the number that stands for it.

    Args:
        env: where it is made.
        name: by which messages of torch call it.
        hint: what it is in the call at hand.
        lower: the least that it can be; None if nothing is known.
        upper: the most that it can be; None if nothing is known.
    """
    source = ConstantSource(name)
    symbol = env.create_symbol(
        hint,
        source,
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=None,
        positive=True if lower is not None and lower > 0 else None,
        do_not_specialize_zero_one=True,
    )
    env.constrain_symbol_range(symbol, -int_oo if lower is None else lower, int_oo if upper is None else upper)
    return symbol, env.create_symintnode(symbol, hint=hint, source=source)


def bindings_of(env: ShapeEnv, value: object) -> Any:
    """Where in a result each number lies that depends on elements, as Dynamo notes it; None if there is none.

    A number that was made on the way and is no part of the result, such as the start of torch.narrow where that is a
    tensor, has no place there: the compiler finds it when it takes the call apart.
    """
    env.ignorable_fresh_unbacked_symbols.extend(env.pending_fresh_unbacked_symbols)
    return compute_unbacked_bindings(env, value)


def is_single_number(number: torch.SymInt) -> bool:
    """Whether a symbolic number stands for one number; the ragged size of a nested tensor stands for many."""
    return isinstance(number.node, SymNode)


def unreplaced_symbol(number: torch.SymFloat) -> str:
    """The name of the symbol that a number was made as, whatever torch has found it equal to since."""
    # torch/fx/experimental/sym_node.py: SymNode.expr replaces it.
    node: Any = number.node
    return str(node._expr.name)
