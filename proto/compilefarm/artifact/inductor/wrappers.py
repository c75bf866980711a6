"""The wrapper: the Python module that Inductor generates around its kernels, and that every pod runs.

As generated it imports much of the compiler (torch/_inductor/codegen/wrapper.py: write_header): a second on a pod, for
names that hardly any wrapper uses.
"""

from __future__ import annotations

import ast
import importlib

import torch

_EXTERN_KERNELS = "extern_kernels"


def finished_wrapper(source: str) -> str:
    """The same module without imports that it does not use.

    Lines keep their numbers, so that tracebacks and Inductor's line map stay right.
    """
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = source.split("\n")
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) and statement.lineno == statement.end_lineno:
            names = {_bound_name(alias) for alias in statement.names}
            if not names & used:
                lines[statement.lineno - 1] = ""
            elif names == {_EXTERN_KERNELS} and _are_functions_of_torch(_attributes(tree, _EXTERN_KERNELS)):
                lines[statement.lineno - 1] = f"import torch as {_EXTERN_KERNELS}"
    return "\n".join(lines)


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _attributes(tree: ast.AST, name: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def _are_functions_of_torch(names: set[str]) -> bool:
    # Most of them are: ExternKernelChoice(torch.mm, ...) in torch/_inductor/kernel/*.py.
    kernels = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    return all(getattr(torch, name, None) is getattr(kernels, name) for name in names)
