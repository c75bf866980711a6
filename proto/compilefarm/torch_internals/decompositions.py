"""What operators become while a graph is traced and lowered: decompositions, lowerings, and patterns of Inductor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

Table = dict[Any, Callable[..., Any]]

# torch/_inductor/fx_passes: modules with patterns. Those of freezing_patterns are looked for with the setting freezing
# alone (torch/_inductor/freezing.py: freeze), which no request has.
_PASSES = ("pre_grad", "joint_graph", "post_grad", "mkldnn_fusion", "quantization", "b2b_gemm")


def decomposition_tables() -> Mapping[str, Table]:
    """What replaces operators while they are traced, by kind: "post_autograd", "pre_autograd", "meta"."""
    # torch/_decomp/__init__.py
    tables: Mapping[str, Table] = torch._decomp.global_decomposition_table
    return tables


def inductor_tables() -> Iterator[tuple[str, Table]]:
    """Inductor's own tables, with the names of their modules, as far as these are imported."""
    # torch/_inductor/decomposition.py, torch/_inductor/lowering.py
    for module, name in (("decomposition", "decompositions"), ("lowering", "lowerings")):
        loaded = sys.modules.get(f"torch._inductor.{module}")
        if loaded is not None:
            yield f"torch._inductor.{module}", getattr(loaded, name)


def inductor_patterns() -> Iterator[tuple[str, object]]:
    """The patterns that Inductor looks for in graphs, with the names of their modules, as far as these are imported."""
    for name in (f"torch._inductor.fx_passes.{each}" for each in _PASSES):
        module = sys.modules.get(name)
        if module is not None:
            yield from ((name, entry) for entry in patterns_in(module))


def patterns_in(module: ModuleType) -> Iterator[object]:
    """The entries of every PatternMatcherPass (torch/_inductor/pattern_matcher.py) that a module has."""
    for value in list(vars(module).values()):
        for found in value if isinstance(value, list) else (value,):
            if type(found).__name__ == "PatternMatcherPass":
                for entries in list(found.patterns.values()):
                    yield from list(entries)
