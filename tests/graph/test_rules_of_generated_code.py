"""What is mended of generated code makes other keys: what was stored before keeps its fault."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from pathlib import Path

from compilefarm.core.keys import newest_format

# What decides how a graph becomes source, beside torch: each takes something of Inductor's in hand while it compiles.
_RULES = (
    *("aot_autograd", "asserted_results", "block_mask_assertions", "booleans", "compiling", "cpp_builds", "freezing"),
    *("index_assertions", "lowered_sizes", "lowered_views", "masked_assertions", "masked_loads", "packed_layers"),
    "weight_only_products",
)
# By the number of the newest format of keys.
_DIGESTS = {5: "cc14ebdd0d9668f8"}
_REMEDY = (
    "what Inductor is made to generate has changed. If programs that were stored before may be wrong: give the newest "
    "format in core/keys.py: FORMATS the next number, and write that here with {digest}. If they are as right as "
    "before, write the digest alone"
)


def test_programs_that_were_made_by_other_rules_are_not_found() -> None:
    digest = hashlib.sha256()
    for name in _RULES:
        spec = importlib.util.find_spec(f"compilefarm.torch_internals.{name}")
        assert spec is not None
        assert spec.origin is not None
        digest.update(repr(_rules_of(ast.parse(Path(spec.origin).read_text()))).encode())
    assert {newest_format(): digest.hexdigest()[:16]} == _DIGESTS, _REMEDY.format(digest=digest.hexdigest()[:16])


def _rules_of(node: object) -> object:
    """What a program says without its comments and docstrings, alike in all releases of Python."""
    match node:
        case list():
            return [_rules_of(each) for each in node if not _is_text(each)]
        case ast.AST():
            said = [(name, _rules_of(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
            return type(node).__name__, said
        case _:
            return node


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
