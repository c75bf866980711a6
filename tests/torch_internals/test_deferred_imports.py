"""Canaries of torch_internals/deferred_imports.py, each in a process that has imported nothing of it."""

from __future__ import annotations

import pytest

from compilefarm.torch_internals.deferred_imports import ARCHIVES, DEBUGGING, TESTING
from tests.forks import errors_of_forks

_LOADING = f"""
import sys
from compilefarm.torch_internals.deferred_imports import without_archives
from compilefarm.torch_internals.loading import import_loader
with without_archives():
    import torch.export.pt2_archive.constants
import_loader()
assert "torch._inductor.codecache" in sys.modules
for name in ({ARCHIVES!r}, "torch._export.serde.schema"):
    assert name not in sys.modules, name

import torch.export.pt2_archive
from torch._inductor.codecache import Weights
from torch.export.pt2_archive import PT2ArchiveReader, _package_weights, constants
assert _package_weights.Weights is Weights
assert constants.CUSTOM_OBJ_FILENAME_PREFIX
import torch._inductor.package
"""
_DEBUGGING = f"""
import sys, torch
from compilefarm.torch_internals.deferred_imports import import_debugging
import_debugging()
assert {DEBUGGING!r} in sys.modules
for name in ({TESTING!r}, "torch._functorch.aot_autograd", "torch._functorch.partitioners", "networkx"):
    assert name not in sys.modules, name
compiled = torch.compile(lambda x: x + 1, backend=lambda graph_module, _: graph_module.forward)
assert "torch._functorch.partitioners" not in sys.modules, "torch.compile imports it elsewhere"

# What was left out is there for whoever calls it, and for whoever imports it.
from torch._dynamo import debug_utils
found = debug_utils.rand_strided((2, 3), (3, 1), torch.float32, "cpu")
assert found.shape == (2, 3)
import torch._dynamo.testing
assert torch._dynamo.testing.rand_strided is sys.modules[{TESTING!r}].rand_strided
assert torch._dynamo.lookup_backend("aot_eager") is torch._dynamo.testing.aot_eager
assert (compiled(torch.ones(2)) == 2).all()
"""


def _asking(name: str, member: str) -> str:
    return f"""
import sys, importlib
from compilefarm.torch_internals.deferred_imports import StandIn, standing_in
with standing_in(StandIn({name!r})):
    stand_in = importlib.import_module({name!r})
    assert isinstance(stand_in, StandIn)
    assert getattr(stand_in, {member!r}) is not None
    assert not isinstance(sys.modules[{name!r}], StandIn)
loaded = sys.modules[{name!r}]
with standing_in(StandIn({name!r})):
    assert sys.modules[{name!r}] is loaded
assert sys.modules[{name!r}] is loaded
"""


# What each has imported before, and does. The first needs Dynamo not imported.
_PROCESSES = {
    "loading": ("torch", _LOADING),
    "debugging": ("torch._dynamo", _DEBUGGING),
    TESTING: ("torch._dynamo", _asking(TESTING, "same")),
    ARCHIVES: ("torch._dynamo", _asking(ARCHIVES, "PT2ArchiveReader")),
}


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    return errors_of_forks(_PROCESSES)


def test_tools_for_debugging_are_imported_without_those_for_tests(errors: dict[str, str]) -> None:
    assert errors["debugging"] == ""


def test_what_loads_programs_is_imported_without_what_serializes_them(errors: dict[str, str]) -> None:
    assert errors["loading"] == ""


@pytest.mark.parametrize("name", [TESTING, ARCHIVES])
def test_who_asks_a_stand_in_for_more_gets_the_module(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""
