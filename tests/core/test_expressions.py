"""Expressions over symbols: what they are worth, and that nothing a stranger writes takes long or breaks."""

from __future__ import annotations

import pytest

from compilefarm.core import expressions
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import (
    Undefined,
    check_expression,
    check_guards,
    check_symbols,
    evaluate,
    holds,
    say,
)
from compilefarm.v1.graph_pb2 import Expression, Operation
from compilefarm.v1.job_pb2 import Job, Symbol


def number(value: int) -> Expression:
    return Expression(integer=value)


def symbol(position: int) -> Expression:
    return Expression(symbol=position)


def real(value: float) -> Expression:
    return Expression(real=value)


def done(operator: int, *operands: Expression) -> Expression:
    return Expression(operation=Operation(operator=operator, operands=operands))  # type: ignore[arg-type]


A, B = symbol(0), symbol(1)


@pytest.mark.parametrize(
    ("expression", "value", "words"),
    [
        (done(expressions.ADD, A, number(-1)), 6, "s0 + -1"),
        (done(expressions.MUL, A, B, number(2)), -28, "s0*s1*2"),
        (done(expressions.FLOOR_DIV, A, B), -4, "s0//s1"),
        (done(expressions.MOD, A, B), -1, "s0 % s1"),
        (done(expressions.MAX, A, B), 7, "max(s0, s1)"),
        (done(expressions.MIN, A, done(expressions.ADD, B, B)), -4, "min(s0, s1 + s1)"),
        (done(expressions.LT, done(expressions.MUL, A, B), number(3)), True, "(s0*s1) < 3"),
        (done(expressions.LE, A, number(7)), True, "s0 <= 7"),
        (done(expressions.EQ, A, B), False, "s0 == s1"),
        (done(expressions.LT, real(-3.25), done(expressions.TRUE_DIV, A, B)), False, "-3.25 < (s0 / s1)"),
        (done(expressions.LE, done(expressions.TRUE_DIV, A, B), real(-3.5)), True, "(s0 / s1) <= -3.5"),
        (done(expressions.FLOOR, done(expressions.TRUE_DIV, B, number(4))), -1, "floor(s1 / 4)"),
        (done(expressions.CEIL, done(expressions.TRUE_DIV, B, number(4))), 0, "ceil(s1 / 4)"),
        (done(expressions.TRUNC, done(expressions.MUL, real(-0.5), A)), -3, "trunc(-0.5*s0)"),
        (done(expressions.ROUND, done(expressions.TRUE_DIV, A, number(2))), 4, "round(s0 / 2)"),
        (done(expressions.EQ, done(expressions.ROUND, real(2.5)), B), False, "round(2.5) == s1"),
        (done(expressions.TRUNC, done(expressions.POWER, number(26), real(0.5))), 5, "trunc(26**0.5)"),
        (done(expressions.FLOOR, done(expressions.SQUARE_ROOT, number(26))), 5, "floor(sqrt(26))"),
        (done(expressions.CEIL, done(expressions.LOG2, number(9))), 4, "ceil(log2(9))"),
        (done(expressions.LT, A, number(2**63 - 1)), True, f"s0 < {2**63 - 1}"),
        (done(expressions.NE, A, B), True, "s0 != s1"),
        (
            done(expressions.AND, done(expressions.LT, B, A), done(expressions.LT, A, B)),
            False,
            "(s1 < s0) and (s0 < s1)",
        ),
        (done(expressions.OR, done(expressions.LT, B, A), done(expressions.LT, A, B)), True, "(s1 < s0) or (s0 < s1)"),
        (done(expressions.NOT, done(expressions.LT, B, A)), False, "not (s1 < s0)"),
    ],
)
def test_values_and_words(expression: Expression, value: int, words: str) -> None:
    check_expression(expression, symbols=2, condition=isinstance(value, bool), what="it")
    assert evaluate(expression, [7, -2]) == value
    assert say(expression) == words


def nested(levels: int) -> Expression:
    expression = A
    for _ in range(levels):
        expression = done(expressions.ADD, expression, number(1))
    return expression


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        (Expression(), False),
        (symbol(2), False),
        (A, True),
        (done(0, A), False),
        (done(99, A), False),
        (done(expressions.ADD), False),
        (done(expressions.FLOOR_DIV, A), False),
        (done(expressions.LT, A, B, B), True),
        (done(expressions.LT, A, B), False),
        (done(expressions.ADD, A, B), True),
        (done(expressions.NOT, A), True),
        (done(expressions.NOT), True),
        (done(expressions.AND, A, B), True),
        (real(1.0), False),
        (real(1.0), True),
        (done(expressions.TRUE_DIV, A, B), False),
        (done(expressions.ADD, A, real(1.0)), False),
        (done(expressions.LT, A, real(float("nan"))), True),
        (done(expressions.LT, A, real(float("inf"))), True),
        (done(expressions.LT, done(expressions.FLOOR_DIV, A, real(2.0)), B), True),
        (done(expressions.POWER, A, number(2)), False),
        (done(expressions.LT, A, done(expressions.SQUARE_ROOT, A, B)), True),
        (done(expressions.LT, A, done(expressions.POWER, A)), True),
        (done(expressions.FLOOR), False),
        (done(expressions.FLOOR, A, B), False),
        (done(expressions.FLOOR, done(expressions.LT, A, B)), False),
        (nested(expressions.MAX_DEPTH + 1), False),
        (done(expressions.ADD, *([A] * expressions.MAX_TERMS)), False),
    ],
)
def test_what_is_refused(expression: Expression, condition: bool) -> None:
    with pytest.raises(InvalidRequest, match="a size"):
        check_expression(expression, symbols=2, condition=condition, what="a size")


def test_guards_are_bounded_together() -> None:
    guard = done(expressions.LE, done(expressions.MAX, *[A] * 97), B)
    most = [guard] * (expressions.MAX_GUARD_TERMS // 100)
    check_guards(most, symbols=2, what="a guard")
    with pytest.raises(InvalidRequest, match="a guard is one of too many: at most 10000 terms"):
        check_guards([*most, done(expressions.LE, A, B)], symbols=2, what="a guard")


@pytest.mark.parametrize(
    "expression",
    [
        done(expressions.FLOOR_DIV, A, number(0)),
        done(expressions.MOD, A, number(0)),
        done(expressions.TRUE_DIV, A, real(0.0)),
        done(expressions.MUL, *([number(2**60)] * 500)),
        done(expressions.TRUNC, done(expressions.MUL, real(1e300), real(1e300))),
        done(expressions.ROUND, done(expressions.MUL, real(1e300), real(1e300), number(0))),
        done(expressions.CEIL, real(1e300)),
        done(expressions.FLOOR, done(expressions.POWER, number(2**60), number(2**60))),
        done(expressions.FLOOR, done(expressions.POWER, number(-2), real(0.5))),
        done(expressions.FLOOR, done(expressions.POWER, number(0), number(-1))),
        done(expressions.FLOOR, done(expressions.SQUARE_ROOT, number(-1))),
        done(expressions.FLOOR, done(expressions.LOG2, number(0))),
        symbol(9),
    ],
)
def test_what_has_no_value_holds_never(expression: Expression) -> None:
    with pytest.raises(Undefined):
        evaluate(expression, [1, 1])
    assert not holds([done(expressions.EQ, expression, expression)], [1, 1])


@pytest.mark.parametrize(
    ("symbols", "hints"),
    [
        ([Symbol()], []),
        ([], [1]),
        ([Symbol(lower=2)], [1]),
        ([Symbol(upper=2)], [3]),
        ([Symbol(lower=5, upper=4)], [5]),
        ([Symbol()] * (expressions.MAX_SYMBOLS + 1), [0] * (expressions.MAX_SYMBOLS + 1)),
    ],
)
def test_hints_have_to_fit_their_symbols(symbols: list[Symbol], hints: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="symbol"):
        check_symbols(Job(symbols=symbols, hints=hints))


def test_hints_that_fit() -> None:
    check_symbols(Job(symbols=[Symbol(), Symbol(lower=2, upper=2)], hints=[-5, 2]))
