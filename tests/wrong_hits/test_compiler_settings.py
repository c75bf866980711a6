"""Every setting of Inductor and functorch, in two pods that differ in it."""

from __future__ import annotations

import functools
from contextlib import suppress
from types import ModuleType

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from compilefarm.core.compiler_settings import CUDA_GRAPHS, CompilerSettings, is_of_cuda_graphs
from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.options import capture_options, config_patches
from compilefarm.v1.job_pb2 import Options

TABLES: tuple[tuple[ModuleType, CompilerSettings], ...] = (
    (torch._inductor.config, INDUCTOR),
    (torch._functorch.config, FUNCTORCH),
)
# Of these names torch knows others, which have a row of their own.
ALIASES = frozenset(
    name
    for module, _ in TABLES
    for name, entry in module._config.items()
    if entry.alias is not None  # type: ignore[attr-defined]
)
ROWS = {
    f"{module.__name__}.{name}": (module, table, name)
    for module, table in TABLES
    for name in sorted(settings.defaults(module).keys() - ALIASES)
}


def other_value(now: object) -> object:
    """A value that no setting has by default."""
    match now:
        case bool():
            return not now
        case int() | float():
            return now + 1
    return "another"


def _captured(*, cuda: bool, with_graphs: bool) -> Options:
    return capture_options({CUDA_GRAPHS: True} if with_graphs else {}, cuda=cuda)


# In a process in which nothing was set: the same for hundreds of tests.
_captured_usually = functools.cache(_captured)


@pytest.mark.parametrize(("module", "table", "name"), ROWS.values(), ids=ROWS.keys())
def test_pods_with_two_settings(module: ModuleType, table: CompilerSettings, name: str) -> None:
    # What a pod asks for: with a GPU if a setting is about its kernels, with CUDA graphs if it is about these.
    of_graphs = is_of_cuda_graphs(name)
    asked = {"cuda": of_graphs or name.startswith("triton."), "with_graphs": of_graphs and name != CUDA_GRAPHS}
    usual = _captured_usually(**asked)
    other: Options | None = None
    with module.patch({name: other_value(settings.values(module)[name])}), suppress(Bypass):  # type: ignore[attr-defined]
        other = _captured(**asked)
    if table.has_no_effect(name):
        assert other == usual
        assert table.find_refusal(name) != "it is not known", "whoever leaves it out of the key says why"
    elif other is None:
        assert table.find_refusal(name) or not table.allowed[name].admits(other_value(settings.values(module)[name]))
    else:
        assert other != usual
        # What a worker sets again.
        assert name in {**config_patches(other)[0], **config_patches(other)[1]}


def test_names_that_begin_like_others() -> None:
    assert "debug" in INDUCTOR.without_effect
    assert not {"debug_index_asserts", "debug_assert"} & {*INDUCTOR.without_effect, *FUNCTORCH.without_effect}
