"""The wrapper: the Python module that Inductor generates around its kernels, and that every pod runs.

As generated it imports much of the compiler (torch/_inductor/codegen/wrapper.py: write_header): a second on a pod, for
names that hardly any wrapper uses.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Sequence

import torch

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


def moved_wrapper(source: str, *, device: int) -> str:
    """A finished wrapper for another GPU than number 0, which workers compile for.

    Raises:
        WrapperNotMoved: it names number 0 in a way that is not known here, and would compute there in part.
    """
    for pattern, replacement in _DEVICE_ZERO:
        source = pattern.sub(replacement.format(device=device), source)
    for number, line in enumerate(source.split("\n"), start=1):
        if _LEFT_ON_DEVICE_ZERO.search(line):
            raise WrapperNotMoved(f"line {number} of the wrapper stays on GPU 0: {line.strip()[:200]}")
    return source


# How Inductor writes a device into wrappers (torch/_inductor/codegen/wrapper.py, cuda/device_op_overrides.py), and this
# package.
_DEVICE_ZERO = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b(_DeviceGuard|set_device|get_raw_stream)\(0\)", r"\1({device})"),
        (r"\bdevice\(type='cuda', index=0\)", "device(type='cuda', index={device})"),
        (r"(['\"])cuda:0\1", r"\1cuda:{device}\1"),
        (r"\bfinished_kernel\((\"[0-9a-f]+\")\)", r"finished_kernel(\1, device={device})"),
    )
)

# What might name GPU 0 once those are replaced, written more loosely.
_LEFT_ON_DEVICE_ZERO = re.compile(
    r"""
    cuda:0\b
    | \bcuda['"],\s*(index\s*=\s*)?0\b
    | \b(device|device_idx|device_index|device_id)\s*=\s*0\b
    | \b(_?DeviceGuard|set_device|get_raw_stream|_getCurrentRawStream|exchange_device)\(\s*0\s*\)
    | \btorch\.cuda\.\w+\(\s*0\s*\)
    | \bfinished_kernel\([^,]*\)
    """,
    re.VERBOSE,
)


class WrapperNotMoved(Exception):
    """A wrapper cannot be run on another GPU than number 0."""


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
    kernels = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    return all(getattr(torch, name, None) is getattr(kernels, name) for name in names)
