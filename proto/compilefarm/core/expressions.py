"""Expressions over the symbols of a job: checking, evaluating and printing them. Without torch.

Expressions of strangers are evaluated here, so everything is bounded: `check_expression` comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import Expression, Operator
from compilefarm.v1.job_pb2 import Job

MAX_DEPTH = 30
MAX_TERMS = 1_000
# Of the guards of an artifact, all together: each who asks for it has them evaluated, a microsecond for a term.
MAX_GUARD_TERMS = 10_000
MAX_SYMBOLS = 1_000
# Beyond every size, and far from numbers that take long to compute with.
MAX_MAGNITUDE = 2**62

ADD = graph_pb2.OPERATOR_ADD
MUL = graph_pb2.OPERATOR_MUL
FLOOR_DIV = graph_pb2.OPERATOR_FLOOR_DIV
MOD = graph_pb2.OPERATOR_MOD
MAX = graph_pb2.OPERATOR_MAX
MIN = graph_pb2.OPERATOR_MIN
EQ = graph_pb2.OPERATOR_EQ
NE = graph_pb2.OPERATOR_NE
LT = graph_pb2.OPERATOR_LT
LE = graph_pb2.OPERATOR_LE
AND = graph_pb2.OPERATOR_AND
OR = graph_pb2.OPERATOR_OR
NOT = graph_pb2.OPERATOR_NOT
TRUE_DIV = graph_pb2.OPERATOR_TRUE_DIV
FLOOR = graph_pb2.OPERATOR_FLOOR
CEIL = graph_pb2.OPERATOR_CEIL
TRUNC = graph_pb2.OPERATOR_TRUNC
ROUND = graph_pb2.OPERATOR_ROUND
POWER = graph_pb2.OPERATOR_POWER
SQUARE_ROOT = graph_pb2.OPERATOR_SQUARE_ROOT
LOG2 = graph_pb2.OPERATOR_LOG2

# Whose operands may come in any order; those of sums and products if they are integers.
COMMUTATIVE = frozenset({ADD, MUL, MAX, MIN, EQ, NE, AND, OR})


def _power(base: Any, exponent: Any) -> Any:
    # Powers of integers can be of any length. Torch's symbolic numbers stay what they are.
    value = (float(base) if isinstance(base, int) else base) ** exponent
    if isinstance(value, complex):
        raise ValueError("a negative number has no real power of a fraction")
    return value


_PAIRS: Mapping[int, Callable[[Any, Any], Any]] = {
    FLOOR_DIV: lambda a, b: a // b,
    MOD: lambda a, b: a % b,
    TRUE_DIV: lambda a, b: a / b,
    POWER: _power,
    EQ: lambda a, b: a == b,
    NE: lambda a, b: a != b,
    LT: lambda a, b: a < b,
    LE: lambda a, b: a <= b,
}
# What makes an integer of a number; torch's symbolic numbers have methods for these.
_ROUNDED: Mapping[int, Callable[[Any], Any]] = {FLOOR: math.floor, CEIL: math.ceil, TRUNC: math.trunc, ROUND: round}
_OF_ANY = frozenset({ADD, MUL, MAX, MIN})
_OF_ONE = frozenset({NOT, SQUARE_ROOT, LOG2, *_ROUNDED})
_OF_CONDITIONS = frozenset({AND, OR, NOT})
_COMPARISONS = frozenset({EQ, NE, LT, LE})
_CONDITIONS = _OF_CONDITIONS | _COMPARISONS
_OF_INTEGERS = frozenset({FLOOR_DIV, MOD})
_INTEGERS = _OF_INTEGERS | {ADD, MUL, MAX, MIN, *_ROUNDED}
_FRACTIONS = frozenset({TRUE_DIV, POWER, SQUARE_ROOT, LOG2})
_REALS = _INTEGERS | _FRACTIONS
# What an expression has to be, by the operators that make it, in words.
_WANTED: Mapping[frozenset[int], str] = {_CONDITIONS: "a condition", _INTEGERS: "an integer", _REALS: "a number"}
_WORDS = {ADD: " + ", MUL: "*", FLOOR_DIV: "//", MOD: " % ", EQ: " == ", NE: " != ", LT: " < ", LE: " <= "}
_WORDS |= {AND: " and ", OR: " or ", TRUE_DIV: " / ", POWER: "**"}
# Written as functions.
_NAMES = {MAX: "max", MIN: "min", FLOOR: "floor", CEIL: "ceil", TRUNC: "trunc", ROUND: "round"}
_NAMES |= {SQUARE_ROOT: "sqrt", LOG2: "log2"}


class Undefined(Exception):
    """An expression has no value: it divides by zero, exceeds the bounds, or refers to a missing symbol."""


def check_expression(expression: Expression, *, symbols: int, condition: bool, what: str) -> int:
    """Checks the form and the size of an expression. Returns how many terms it has.

    Args:
        expression: what to check.
        symbols: how many symbols there are to refer to.
        condition: whether it has to be a condition; otherwise a number.
        what: its role, for messages.

    Raises:
        InvalidRequest: it is malformed, too large or too deep.
    """
    wanted = _CONDITIONS if condition else _INTEGERS
    return _check(expression, symbols=symbols, wanted=wanted, depth=0, what=what)


def check_guards(guards: Iterable[Expression], *, symbols: int, what: str, before: int = 0) -> int:
    """Checks the form and the size of the guards of an artifact. Returns how many terms they have.

    Args:
        guards: what to check.
        symbols: how many symbols there are to refer to.
        what: the role of each, for messages.
        before: how many terms others of the artifact have, which were checked before.

    Raises:
        InvalidRequest: one is malformed, too large or too deep, or they are too many.
    """
    terms = before
    for guard in guards:
        terms += check_expression(guard, symbols=symbols, condition=True, what=what)
        if terms > MAX_GUARD_TERMS:
            raise InvalidRequest(f"{what} is one of too many: at most {MAX_GUARD_TERMS} terms are taken of all")
    return terms


def _check(expression: Expression, *, symbols: int, wanted: frozenset[int], depth: int, what: str) -> int:
    kind = expression.WhichOneof("value")
    if kind is None or depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{what} has an expression that is not set, or is nested more than {MAX_DEPTH} levels deep"
        )
    if kind != "operation":
        _check_leaf(expression, symbols=symbols, wanted=wanted, what=what)
        return 1
    operator, operands = expression.operation.operator, expression.operation.operands
    if operator not in wanted:
        raise InvalidRequest(f"{what} uses operator {operator} where {_WANTED[wanted]} goes")
    if not _takes(operator, len(operands)):
        raise InvalidRequest(f"{what} gives {len(operands)} operands to {Operator.Name(operator)}")
    inner, terms = _wanted_of_operands(operator, wanted), 1
    for operand in operands:
        terms += _check(operand, symbols=symbols, wanted=inner, depth=depth + 1, what=what)
        # No more is looked at than is taken.
        if terms > MAX_TERMS:
            raise InvalidRequest(f"{what} is an expression of more than {MAX_TERMS} terms, which are all that is taken")
    return terms


def _check_leaf(expression: Expression, *, symbols: int, wanted: frozenset[int], what: str) -> None:
    if wanted is _CONDITIONS:
        raise InvalidRequest(f"{what} has a number where a condition is expected")
    if expression.HasField("real") and not (wanted is _REALS and math.isfinite(expression.real)):
        raise InvalidRequest(f"{what} has {expression.real} where {_WANTED[wanted]} goes")
    if expression.HasField("symbol") and expression.symbol >= symbols:
        raise InvalidRequest(f"{what} refers to symbol {expression.symbol}, of which there are {symbols}")


def _wanted_of_operands(operator: int, wanted: frozenset[int]) -> frozenset[int]:
    if operator in _OF_CONDITIONS:
        return _CONDITIONS
    if operator in _COMPARISONS or operator in _ROUNDED:
        return _REALS
    return _INTEGERS if operator in _OF_INTEGERS else wanted


def _takes(operator: Operator.ValueType, count: int) -> bool:
    if operator in _OF_ONE:
        return count == 1
    return count == 2 if operator in _PAIRS else count >= 1


def check_symbols(job: Job) -> None:
    """Checks symbols and hints of a job against each other.

    Raises:
        InvalidRequest: they do not fit.
    """
    if len(job.hints) != len(job.symbols) or len(job.symbols) > MAX_SYMBOLS:
        raise InvalidRequest(
            f"the job has {len(job.symbols)} symbols and {len(job.hints)} hints; as many of each, at most"
            f" {MAX_SYMBOLS}, are expected"
        )
    for number, (symbol, hint) in enumerate(zip(job.symbols, job.hints, strict=True)):
        lower = symbol.lower if symbol.HasField("lower") else hint
        upper = symbol.upper if symbol.HasField("upper") else hint
        if not lower <= hint <= upper:
            raise InvalidRequest(f"symbol {number} is {hint}, but said to lie between {lower} and {upper}")


# Functions of numbers that Python has no methods for; torch has others for its symbolic numbers.
OF_PYTHON: Mapping[int, Callable[..., Any]] = {MAX: max, MIN: min, SQUARE_ROOT: math.sqrt, LOG2: math.log2}


def evaluate(
    expression: Expression, values: Sequence[Any], *, functions: Mapping[int, Callable[..., Any]] = OF_PYTHON
) -> Any:
    """Returns the value of a checked expression.

    Args:
        expression: has passed `check_expression`.
        values: one for each symbol: integers, or what computes like them, such as torch.SymInt.
        functions: of these values.

    Raises:
        Undefined: it divides by zero, has no real value, refers to a symbol that has none, or an integer leaves all
            bounds.
    """
    match expression.WhichOneof("value"):
        case "integer":
            return expression.integer
        case "real":
            return expression.real
        case "symbol":
            if expression.symbol >= len(values):
                raise Undefined(f"there is no symbol {expression.symbol}")
            return values[expression.symbol]
    operator = expression.operation.operator
    operands = (evaluate(operand, values, functions=functions) for operand in expression.operation.operands)
    # In Python's terms, so that operands which are decided while they are looked at are looked at only if need be.
    if operator == AND:
        return all(operands)
    if operator == OR:
        return any(operands)
    if operator == NOT:
        return not next(operands)
    return _bounded(_computed(operator, operands, functions))


def _computed(operator: int, operands: Iterable[Any], functions: Mapping[int, Callable[..., Any]]) -> Any:
    if operator in _OF_ANY:
        return reduce(_SUMS.get(operator) or functions[operator], operands)
    compute = _ROUNDED.get(operator) or _PAIRS.get(operator) or functions[operator]
    try:
        return compute(*operands)
    except ZeroDivisionError as error:
        raise Undefined("an expression divides by zero") from error
    except (OverflowError, ValueError) as error:
        raise Undefined("an expression is infinite, or has no real value") from error


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MAX_MAGNITUDE:
        raise Undefined(f"an expression has a value of {int(math.log2(abs(value)))} bits")
    return value


_SUMS: Mapping[int, Callable[[Any, Any], Any]] = {
    ADD: lambda a, b: _bounded(a + b),
    MUL: lambda a, b: _bounded(a * b),
}


def holds(conditions: Iterable[Expression], values: Sequence[int]) -> bool:
    """Returns whether all of some checked conditions hold for these values of the symbols."""
    try:
        return all(evaluate(condition, values) for condition in conditions)
    except Undefined:
        return False


def say(expression: Expression) -> str:
    """Returns a checked expression as text ("s0 <= 64")."""
    match expression.WhichOneof("value"):
        case "integer":
            return str(expression.integer)
        case "real":
            return repr(expression.real)
        case "symbol":
            return f"s{expression.symbol}"
    operator = expression.operation.operator
    operands = [say(operand) for operand in expression.operation.operands]
    if operator == NOT:
        return f"not ({operands[0]})"
    if operator in _NAMES:
        return f"{_NAMES[operator]}({', '.join(operands)})"
    nested = [
        f"({text})" if operand.HasField("operation") and operand.operation.operator not in _NAMES else text
        for text, operand in zip(operands, expression.operation.operands, strict=True)
    ]
    return _WORDS[operator].join(nested)
