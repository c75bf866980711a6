"""What operators become while a graph is traced and lowered: decompositions, lowerings, and patterns of Inductor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import ModuleType
from typing import Any

import torch

Table = dict[Any, Callable[..., Any]]

# torch/_inductor/fx_passes: modules with patterns. Those of freezing_patterns are looked for with the setting freezing
# alone (torch/_inductor/freezing.py: freeze), which no request has.
_PASS_MODULES = tuple(
    f"torch._inductor.fx_passes.{name}"
    for name in ("pre_grad", "joint_graph", "post_grad", "mkldnn_fusion", "quantization", "b2b_gemm")
)


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
    for name in _PASS_MODULES:
        module = sys.modules.get(name)
        if module is not None:
            yield from ((name, entry) for entry in patterns_in(module))


def patterns_in(module: ModuleType) -> Iterator[object]:
    """The entries of every PatternMatcherPass (torch/_inductor/pattern_matcher.py) that a module has."""
    yield from _entries(_passes_in(module))


class InductorPatterns:
    """The patterns of `inductor_patterns`, found in a twentieth of the time when they are asked for again: modules are
    searched for passes only when they have more or fewer names than before.
    """

    def __init__(self) -> None:
        self._numbers_of_names: dict[str, int] = {}
        self._passes: list[list[Any]] = []

    def entries(self) -> list[object]:
        """All of them, as far as their modules are imported."""
        loaded = {name: module for name in _PASS_MODULES if (module := sys.modules.get(name)) is not None}
        numbers = {name: len(vars(module)) for name, module in loaded.items()}
        if numbers != self._numbers_of_names:
            self._passes = [passes for module in loaded.values() for passes in _passes_in(module)]
            self._numbers_of_names = numbers
        return list(_entries(self._passes))


def _passes_in(module: ModuleType) -> list[list[Any]]:
    """Lists that hold passes, as a module has them, to which others may add."""
    values = [value if isinstance(value, list) else [value] for value in list(vars(module).values())]
    return [value for value in values if any(type(found).__name__ == "PatternMatcherPass" for found in value)]


def _entries(passes: list[list[Any]]) -> Iterator[object]:
    for found in chain.from_iterable(passes):
        if type(found).__name__ == "PatternMatcherPass":
            yield from chain.from_iterable(list(found.patterns.values()))
