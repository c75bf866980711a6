"""The wrapper: the Python module that Inductor generates around its kernels, and that every pod runs.

As generated it imports much of the compiler (torch/_inductor/codegen/wrapper.py: write_header): a second on a pod, for
names that hardly any wrapper uses.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence

import torch

from compilefarm.torch_internals.generated_code import operators_with_kernels

_EXTERN_KERNELS = "extern_kernels"


# Functions that time a wrapper on made-up inputs, for whoever runs it as a script.
_FOR_SCRIPTS = frozenset({"get_args", "benchmark_compiled_module"})


def finished_wrapper(source: str) -> str:
    """The same module with nothing but what a call needs: without comments, texts, timers and unused imports.

    Lines keep their numbers, so that tracebacks and Inductor's line map stay right.
    """
    lines = source.split("\n")
    for number in _comment_lines(source):
        lines[number - 1] = ""
    kept = []
    for statement in ast.parse(source).body:
        if _is_for_people(statement):
            blank(lines, statement)
        else:
            kept.append(statement)
    used = {node.id for statement in kept for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for statement in kept:
        if isinstance(statement, ast.Import | ast.ImportFrom) and statement.lineno == statement.end_lineno:
            names = {_bound_name(alias) for alias in statement.names}
            if not names & used:
                blank(lines, statement)
            elif names == {_EXTERN_KERNELS} and _are_functions_of_torch(_attributes(kept, _EXTERN_KERNELS)):
                lines[statement.lineno - 1] = f"import torch as {_EXTERN_KERNELS}"
    return "\n".join(lines)


def taking_constants(source: str, names: Sequence[str]) -> str:
    """The same module with constants that its `call` takes behind the inputs of the graph, instead of those that are
    made variables of the module when it is loaded.

    Raises:
        WrapperNotKnown: it is not written as Inductor writes wrappers.
    """
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(calls) != 1 or calls[0].args.args[-1].arg != "args":
        raise WrapperNotKnown(f"the wrapper has {len(calls)} functions that are called `call`")
    first = calls[0].body[0]
    taken: list[str] = []
    match first:
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Name(id="args")):
            taken = [element.id for element in elements if isinstance(element, ast.Name)]
    lines = source.split("\n")
    unpacking = f"{' ' * first.col_offset}{', '.join((*taken, *names))}, = args"
    if taken:
        lines[first.lineno - 1] = unpacking
    else:
        # Of no input: lines keep their numbers.
        lines[first.lineno - 1] = f"{unpacking}; args.clear(); {lines[first.lineno - 1].lstrip()}"
    return "\n".join(lines)


class WrapperNotKnown(Exception):
    """A wrapper is not written as Inductor writes them."""


def blank(lines: list[str], statement: ast.stmt, *, replacement: str = "") -> None:
    """Puts empty lines, and on the first another statement, in the place of one that has its lines to itself."""
    assert statement.end_lineno is not None
    lines[statement.lineno - 1 : statement.end_lineno] = [
        replacement,
        *[""] * (statement.end_lineno - statement.lineno),
    ]


def _is_for_people(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            # How the kernels were tuned, as a program in a text.
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return isinstance(statement, ast.FunctionDef) and statement.name in _FOR_SCRIPTS


def _comment_lines(source: str) -> list[int]:
    """Numbers of the lines that hold a comment and nothing else; a line within a text is none."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _attributes(statements: Sequence[ast.stmt], name: str) -> set[str]:
    return {
        node.attr
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def _are_functions_of_torch(names: set[str]) -> bool:
    # Most of them are: ExternKernelChoice(torch.mm, ...) in torch/_inductor/kernel/*.py.
    kernels = operators_with_kernels()
    return all(getattr(torch, name, None) is getattr(kernels, name) for name in names)
