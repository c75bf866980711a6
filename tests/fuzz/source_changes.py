"""Changes of a source, one at a time: constants, operators, conditions, calls, statements, classes, imports.

All lines but those of what is changed stay where they are, as they are.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

_ATTEMPTS = 60
# Names of which one takes the place of another; otherwise any name of the source does.
_ALIKE = (
    ("relu", "gelu", "silu", "tanh", "sigmoid", "sin", "abs", "exp", "square"),
    ("sum", "mean", "amax", "amin"),
    ("max", "min"),
    ("ones", "zeros"),
    ("add", "sub", "mul", "div"),
    ("any", "all", "bool"),
    ("ReLU", "GELU", "SiLU", "Tanh", "Identity"),
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_DECORATORS = ("staticmethod", "classmethod", "property", "__import__('functools').cache")
# What becomes of a copy of a node; nothing where there is nothing to change.
Rewrite = Callable[[Any, Random], ast.AST | None]


def changed(source: str, lines: Collection[int], random: Random) -> tuple[str, str] | None:
    """A source with one change at one of some lines, and what it is; None if none was found."""
    tree = ast.parse(source)
    rewrites = _rewrites(tree)
    nodes = defaultdict[type[ast.AST], list[Any]](list)
    for each in ast.walk(tree):
        if type(each) in rewrites and getattr(each, "lineno", 0) in lines:
            nodes[type(each)].append(each)
    for _ in range(_ATTEMPTS if nodes else 0):
        # There are more names than all else.
        kind = random.choice(list(nodes))
        node, (what, rewrite) = random.choice(nodes[kind]), random.choice(list(rewrites[kind].items()))
        rewritten = rewrite(copy.deepcopy(node), random)
        if rewritten is None:
            continue
        result = replaced(source, node, ast.unparse(ast.fix_missing_locations(rewritten)))
        if result != source and _is_source(result):
            return result, f"line {node.lineno}: {what}"
    return None


def replaced(source: str, node: Any, text: str) -> str:
    """A source with other text in place of a node. What follows stays where it is if the text has no more lines."""
    lines = source.encode().splitlines(keepends=True)
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    indent = len(lines[first - 1]) - len(lines[first - 1].lstrip())
    begin = sum(map(len, lines[: first - 1])) + (node.col_offset if first == node.lineno else indent)
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    if isinstance(node, ast.stmt):
        text = text.replace("\n", "\n" + " " * indent)
        text += "\n" * (node.end_lineno - first - text.count("\n"))
    return (source.encode()[:begin] + text.encode() + source.encode()[end:]).decode()


def numbers_within(source: str, lines: Collection[int]) -> Iterator[ast.Constant]:
    """Numbers that functions compute with, at some lines: not those of annotations, patterns or formatted texts."""
    nodes, passed_over = list(ast.walk(ast.parse(source))), set[ast.AST]()
    for node in nodes:
        if isinstance(node, (ast.arguments, ast.JoinedStr, ast.match_case, ast.AnnAssign)):
            passed_over.update(ast.walk(node))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.lineno in lines:
            yield from () if node in passed_over else (node,)


def _is_source(text: str) -> bool:
    try:
        compile(text, "changed", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _rewrites(tree: ast.AST) -> Mapping[type[ast.AST], Mapping[str, Rewrite]]:
    """What may become of nodes of each kind, by what it is in words."""
    nodes = list(ast.walk(tree))
    attributes = sorted({each.attr for each in nodes if isinstance(each, ast.Attribute)})
    names = sorted({each.id for each in nodes if isinstance(each, ast.Name)})
    texts = sorted({each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)})

    def constant(node: ast.Constant, random: Random) -> ast.AST | None:
        return _another_constant(node, random, texts)

    conditions = {"another condition": _another_condition}
    nothing: Mapping[str, Rewrite] = {"nothing in its place": lambda *_: ast.Pass()}
    parts: Mapping[str, Rewrite] = {"another order": _another_order, "without a part": _without_a_part}
    return {
        ast.Constant: {"another constant": constant},
        ast.BinOp: {
            "another operator": _another_operator,
            "operands swapped": lambda node, _: ast.BinOp(node.right, node.op, node.left),
            "one operand": lambda node, random: random.choice((node.left, node.right)),
        },
        ast.AugAssign: {"another operator": _another_operator, **nothing},
        ast.Compare: {
            "another comparison": lambda node, random: ast.Compare(
                node.left, [random.choice(_COMPARISONS)(), *node.ops[1:]], node.comparators
            )
        },
        ast.BoolOp: {
            "and for or": lambda node, _: ast.BoolOp((ast.Or, ast.And)[isinstance(node.op, ast.Or)](), node.values),
            "one operand": lambda node, random: random.choice(node.values),
        },
        ast.UnaryOp: {"its operand": lambda node, _: node.operand},
        ast.If: conditions,
        ast.IfExp: conditions,
        ast.While: conditions,
        **dict.fromkeys((ast.Expr, ast.Assign, ast.AnnAssign, ast.Raise, ast.Assert), nothing),
        ast.Return: {
            "twice the result": lambda node, _: (
                ast.Return(ast.BinOp(ast.Constant(2), ast.Mult(), node.value)) if node.value else None
            )
        },
        ast.Name: {"another name": lambda node, random: ast.Name(_another_name(node.id, names, random))},
        ast.Attribute: {
            "another attribute": lambda node, random: ast.Attribute(
                node.value, _another_name(node.attr, attributes, random)
            )
        },
        ast.Call: {
            "without an argument": _without_an_argument,
            "arguments in another order": _with_arguments_in_another_order,
            "an argument in its place": lambda node, random: random.choice([*node.args, None]),
        },
        **dict.fromkeys((ast.Dict, ast.List, ast.Tuple), parts),
        ast.FunctionDef: {
            "other decorators": _with_other_decorators,
            "other defaults": lambda node, random: _with_other_defaults(node, random, texts),
            "statements swapped": _with_statements_swapped,
        },
        ast.ClassDef: {
            "other decorators": _with_other_decorators,
            "statements swapped": _with_statements_swapped,
            "other bases": _with_other_bases,
        },
        ast.ImportFrom: {"another import": _another_import},
    }


def _another_constant(node: ast.Constant, random: Random, texts: Sequence[str]) -> ast.AST | None:
    value = node.value
    if isinstance(value, bool) or value is None:
        return ast.Constant(random.choice([each for each in (True, False, None) if each is not value]))
    if isinstance(value, (int, float)):
        return ast.Constant(random.choice([value + 1, value * 2, -value, value * 1.5, type(value)(0)]))
    if isinstance(value, str):
        return ast.Constant(random.choice([random.choice(texts), f"{value}_", value[1:]]))
    return None


def _another_name(name: str, names: Sequence[str], random: Random) -> str:
    return random.choice([each for group in _ALIKE if name in group for each in group] or names)


def _another_operator(node: ast.BinOp | ast.AugAssign, random: Random) -> ast.AST:
    node.op = random.choice(_OPERATORS)()
    return node


def _another_condition(node: ast.If | ast.IfExp | ast.While, random: Random) -> ast.AST:
    negated = ast.UnaryOp(ast.Not(), node.test)
    node.test = random.choice([negated, negated, ast.Constant(True), ast.Constant(False)])
    return node


def _without_an_argument(node: ast.Call, random: Random) -> ast.AST | None:
    arguments: list[Any] = random.choice([node.keywords, node.args])
    if not arguments:
        return None
    arguments.pop(random.randrange(len(arguments)))
    return node


def _with_arguments_in_another_order(node: ast.Call, random: Random) -> ast.AST:
    random.shuffle(node.args)
    return node


def _another_order(node: Any, random: Random) -> ast.AST:
    random.shuffle(node.values if isinstance(node, ast.Dict) else node.elts)
    return node


def _without_a_part(node: Any, random: Random) -> ast.AST | None:
    parts = (node.keys, node.values) if isinstance(node, ast.Dict) else (node.elts,)
    place = random.randrange(len(parts[0]) + 1)
    for each in parts:
        del each[place : place + 1]
    return node


def _with_other_decorators(node: Any, random: Random) -> ast.AST:
    texts = [random.choice(_DECORATORS)] if isinstance(node, ast.FunctionDef) and random.random() < 0.5 else []
    node.decorator_list = [ast.parse(each, mode="eval").body for each in texts]
    return node


def _with_other_defaults(node: ast.FunctionDef, random: Random, texts: Sequence[str]) -> ast.AST:
    for defaults in (node.args.defaults, node.args.kw_defaults):
        for place, each in enumerate(defaults):
            if isinstance(each, ast.Constant):
                defaults[place] = _another_constant(each, random, texts) or each  # type: ignore[call-overload]
    return node


def _with_statements_swapped(node: Any, random: Random) -> ast.AST:
    place = random.randrange(len(node.body))
    node.body[place : place + 2] = reversed(node.body[place : place + 2])
    return node


def _with_other_bases(node: ast.ClassDef, random: Random) -> ast.AST:
    node.bases = node.bases[::-1] if len(node.bases) > 1 and random.random() < 0.7 else node.bases[:-1]
    return node


def _another_import(node: ast.ImportFrom, random: Random) -> ast.AST | None:
    if len(node.names) < 2:
        return None
    one, other = random.sample(node.names, 2)
    one.asname, one.name = one.asname or one.name, other.name
    return node
