"""Translates torch's symbols, for numbers that differ from call to call, into those of a job, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import sympy
import torch

from compilefarm.core import expressions
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import check_expression, check_guards, check_symbols, evaluate
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals import symbolic_shapes as functions
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv, create_symbol, is_single_number
from compilefarm.v1.graph_pb2 import Dimension, Expression, Operation
from compilefarm.v1.job_pb2 import Job, Symbol

_LARGEST_POWER = 8


class Inexpressible(Exception):
    """An expression of torch has parts that cannot be said."""


class SymbolTable:
    """Numbers the symbols of one job in the order in which its inputs mention them."""

    def __init__(self) -> None:
        self._numbers: dict[sympy.Symbol, int] = {}
        self._values: dict[sympy.Symbol, torch.SymInt] = {}

    @property
    def values(self) -> list[torch.SymInt]:
        """Torch's value of each symbol.

        Raises:
            Bypass: a symbol is only ever mentioned within larger expressions.
        """
        for symbol in self._numbers:
            if symbol not in self._values:
                raise Bypass("dynamic_shapes", f"no input of the graph is the symbol {symbol} that others refer to")
        return [self._values[symbol] for symbol in self._numbers]

    def encode_dimension(self, number: int | torch.SymInt, *, into: Dimension, what: str) -> None:
        """Writes a size, stride or offset.

        Raises:
            Bypass: it cannot be said.
        """
        if isinstance(number, torch.SymInt):
            expression = self.encode(number, what=what)
            if expression.WhichOneof("value") != "integer":
                into.expression.CopyFrom(expression)
                return
            # A symbol that turned out to have one value: there is one way to say it.
            number = expression.integer
        into.size = number

    def encode(self, number: torch.SymInt, *, what: str) -> Expression:
        """A symbolic number as an expression.

        Raises:
            Bypass: it cannot be said.
        """
        if find_hint(number) is None:
            raise Bypass("unbacked_input", f"{what} is known to differ from call to call, but not what it is now")
        term = number.node.expr
        try:
            expression = expression_of(term, numbers=self._number)
            check_expression(expression, symbols=len(self._numbers), condition=False, what=what)
        except (Inexpressible, InvalidRequest) as error:
            raise Bypass("dynamic_shapes", f"{what} is {term}, which cannot be sent: {error}") from error
        if isinstance(term, sympy.Symbol):
            self._values.setdefault(term, number)
        return expression

    def symbols(self) -> list[Symbol]:
        """What is known of each symbol."""
        return [_described(value) for value in self.values]

    def hints(self) -> list[int]:
        """What each symbol is in the call at hand."""
        return [int(value.node.hint) for value in self.values]

    def _number(self, symbol: sympy.Symbol) -> int:
        return self._numbers.setdefault(symbol, len(self._numbers))


def find_hint(number: int | torch.SymInt) -> int | None:
    """What a number is in the call at hand, without a guard on it; None if nobody knows."""
    if isinstance(number, torch.SymInt):
        # The ragged size of a nested tensor stands for many numbers.
        hint = number.node.hint if is_single_number(number) else None
        return int(hint) if isinstance(hint, int) else None
    return number


def _described(value: torch.SymInt) -> Symbol:
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    described = Symbol()
    # Anything else is one of torch's infinities.
    if isinstance(bounds.lower, sympy.Integer):
        described.lower = max(int(bounds.lower), -(2**63))
    if isinstance(bounds.upper, sympy.Integer):
        described.upper = min(int(bounds.upper), 2**63 - 1)
    return described


def expression_of(term: sympy.Basic, *, numbers: Callable[[sympy.Symbol], int]) -> Expression:
    """An expression of torch's ShapeEnv as data.

    Args:
        term: the expression.
        numbers: the number of a symbol.

    Raises:
        Inexpressible: it has parts that are neither numbers nor conditions, or symbols without a number.
    """
    if isinstance(term, sympy.Integer):
        # Ends of slices that have none are sys.maxsize.
        if not -(2**63) <= int(term) < 2**63:
            raise Inexpressible(f"{term} is too large")
        return Expression(integer=int(term))
    if isinstance(term, sympy.Float) and math.isfinite(float(term)):
        return Expression(real=float(term))
    if isinstance(term, sympy.Symbol):
        return Expression(symbol=numbers(term))

    def operation(operator: Any, *operands: sympy.Basic) -> Expression:
        said = [expression_of(operand, numbers=numbers) for operand in operands]
        if operator in expressions.COMMUTATIVE and (operator not in _ROUNDING or term.is_integer):
            # sympy sorts them by the names of symbols, and torch names these by where a program has its sizes from.
            said.sort(key=lambda operand: operand.SerializeToString(deterministic=True))
        return Expression(operation=Operation(operator=operator, operands=said))

    operator = _OPERATORS.get(type(term))
    if operator is not None:
        return operation(operator, *term.args)
    swapped = _SWAPPED.get(type(term))
    if swapped is not None:
        return operation(swapped, *reversed(term.args))
    if isinstance(term, functions.Identity):
        return expression_of(term.args[0], numbers=numbers)
    if isinstance(term, functions.ToFloat):
        return operation(expressions.TRUE_DIV, *term.args, sympy.S.One)
    if isinstance(term, functions.ModularIndexing):
        base, divisor, modulus = term.args
        return operation(expressions.MOD, functions.FloorDiv(base, divisor), modulus)
    rounded = term.args[0] if isinstance(term, functions.CeilToInt | functions.FloorToInt) else None
    if isinstance(rounded, functions.IntTrueDiv):
        # As torch computes it, in floating point, it is the same for all sizes that there are.
        base, divisor = rounded.args
        if isinstance(term, functions.FloorToInt):
            return operation(expressions.FLOOR_DIV, base, divisor)
        return expression_of(-functions.FloorDiv(-base, divisor), numbers=numbers)
    rounding = _ROUNDED.get(type(term))
    if rounding is not None:
        return operation(rounding, *term.args)
    if isinstance(term, sympy.Pow | functions.PowByNatural):
        base, power = term.args
        if isinstance(power, sympy.Integer) and 1 <= int(power) <= _LARGEST_POWER:
            return operation(expressions.MUL, *repeat(base, int(power)))
    raise Inexpressible(f"{type(term).__name__} is not among the operations that can be said")


_OPERATORS: Mapping[type, Any] = {
    sympy.Add: expressions.ADD,
    sympy.Mul: expressions.MUL,
    functions.FloorDiv: expressions.FLOOR_DIV,
    functions.CleanDiv: expressions.FLOOR_DIV,
    functions.Mod: expressions.MOD,
    functions.PythonMod: expressions.MOD,
    functions.IntTrueDiv: expressions.TRUE_DIV,
    functions.FloatTrueDiv: expressions.TRUE_DIV,
    functions.FloatPow: expressions.POWER,
    functions.SquareRoot: expressions.SQUARE_ROOT,
    functions.Log2: expressions.LOG2,
    functions.Max: expressions.MAX,
    functions.Min: expressions.MIN,
    sympy.Eq: expressions.EQ,
    sympy.Ne: expressions.NE,
    sympy.StrictLessThan: expressions.LT,
    sympy.LessThan: expressions.LE,
    sympy.And: expressions.AND,
    sympy.Or: expressions.OR,
    sympy.Not: expressions.NOT,
}
# What makes an integer of a number, such as the size of an image that is scaled by 1.5.
_ROUNDED: Mapping[type, Any] = {
    functions.FloorToInt: expressions.FLOOR,
    functions.CeilToInt: expressions.CEIL,
    functions.TruncToInt: expressions.TRUNC,
    functions.RoundToInt: expressions.ROUND,
}
# What rounds, where it is of fractions, in an order.
_ROUNDING = frozenset({expressions.ADD, expressions.MUL})
_SWAPPED: Mapping[type, Any] = {sympy.StrictGreaterThan: expressions.LT, sympy.GreaterThan: expressions.LE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The symbols of a job that is being decoded.

    Attributes:
        hints: what each is in the call at hand.
        values: what tensors are made with: the hints, or torch's symbols.
    """

    hints: Sequence[int]
    values: Sequence[int | torch.SymInt]

    def hint(self, dimension: Dimension | Expression, *, what: str) -> int:
        """What a dimension or number is in the call at hand.

        Raises:
            InvalidRequest: it is malformed.
        """
        if isinstance(dimension, Dimension):
            match dimension.WhichOneof("value"):
                case "size":
                    return dimension.size
                case None:
                    raise InvalidRequest(f"{what} has a size, stride or offset that is not set")
            dimension = dimension.expression
        check_expression(dimension, symbols=len(self.hints), condition=False, what=what)
        try:
            return int(evaluate(dimension, self.hints))
        except expressions.Undefined as error:
            raise InvalidRequest(f"{what}: {error}") from None

    def value(self, dimension: Dimension | Expression) -> Any:
        """The same as it enters a tensor; `hint` has checked it."""
        if isinstance(dimension, Dimension):
            if dimension.WhichOneof("value") == "size":
                return dimension.size
            dimension = dimension.expression
        return evaluate_symbolic(dimension, self.values)


NO_SYMBOLS = Symbols(hints=(), values=())
_SYMBOLIC: Mapping[int, Callable[..., Any]] = {
    expressions.MAX: torch.sym_max,
    expressions.MIN: torch.sym_min,
    expressions.SQUARE_ROOT: torch.sym_sqrt,
    expressions.LOG2: functions.sym_log2,
}


def evaluate_symbolic(expression: Expression, values: Sequence[int | torch.SymInt]) -> Any:
    """The value of a checked expression over torch's symbols; a condition puts guards on them."""
    return evaluate(expression, values, functions=_SYMBOLIC)


def put_guards(guards: Iterable[Expression], values: Sequence[torch.SymInt]) -> bool:
    """Puts checked conditions on the symbols of this process; False if one does not hold."""
    return all(evaluate_symbolic(guard, values) for guard in guards)


@dataclass(slots=True, kw_only=True)
class SymbolicJob:
    """The symbols of a job, made anew.

    Attributes:
        shape_env: where they live.
        symbols: what they are.
    """

    shape_env: ShapeEnv
    symbols: Symbols
    _numbers: dict[sympy.Symbol, int] = field(default_factory=dict)

    def number_at(self, number: int | torch.SymInt, hints: Sequence[int]) -> int | None:
        """What a number of the graph is where the symbols are what is given; None if that hangs on more than these."""
        if not isinstance(number, torch.SymInt):
            return number
        given = {symbol: sympy.Integer(hints[position]) for symbol, position in self._numbers.items()}
        found = number.node.expr.xreplace(given)
        return int(found) if found.is_Integer else None

    def guards(self) -> list[Expression]:
        """What has been assumed of the symbols since they were made, as conditions.

        Raises:
            Inexpressible: an assumption cannot be said, or they are too many.
        """
        conditions = (guard.expr for guard in self.shape_env.guards if guard.expr != sympy.true)
        guards = [said for condition in conditions if (said := self._guard(condition)) is not None]
        try:
            check_guards(guards, symbols=len(self._numbers), what="an assumption of the compiler")
        except InvalidRequest as error:
            raise Inexpressible(str(error)) from error
        return guards

    def _guard(self, condition: sympy.Basic) -> Expression | None:
        """A condition as data; None if it cannot be said and holds of all sizes."""
        try:
            return expression_of(condition, numbers=self._number)
        except Inexpressible as error:
            if _holds_of_all_sizes(condition):
                return None
            raise Inexpressible(f"the compiler assumed {condition}, which cannot be said: {error}") from error

    def _number(self, symbol: sympy.Symbol) -> int:
        number = self._numbers.get(symbol)
        if number is None:
            raise Inexpressible(f"{symbol} is not known before the graph runs")
        return number


def make_symbols(job: Job) -> SymbolicJob:
    """Makes the symbols of a job in a ShapeEnv of its own.

    Raises:
        InvalidRequest: symbols and hints do not fit each other.
    """
    check_symbols(job)
    # What a graph may compute is its own affair: Dynamo has decided that when it captured it.
    env = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    made = SymbolicJob(shape_env=env, symbols=NO_SYMBOLS)
    values: list[int | torch.SymInt] = []
    for number, (symbol, hint) in enumerate(zip(job.symbols, job.hints, strict=True)):
        lower = symbol.lower if symbol.HasField("lower") else None
        upper = symbol.upper if symbol.HasField("upper") else None
        term, value = create_symbol(env, f"symbol_{number}", hint=hint, lower=lower, upper=upper)
        made._numbers[term] = number
        values.append(value)
    made.symbols = Symbols(hints=tuple(job.hints), values=values)
    return made


def _holds_of_all_sizes(condition: sympy.Basic) -> bool:
    """Whether a condition says of a symbol that it is no more than a number that none of 64 bits exceeds: torch 2.11
    assumes that of a slice without an end.
    """
    if not isinstance(condition, sympy.Lt | sympy.Gt | sympy.Le | sympy.Ge):
        return False
    largest = condition.gts
    return isinstance(condition.lts, sympy.Symbol) and isinstance(largest, sympy.Integer) and int(largest) >= 2**63
