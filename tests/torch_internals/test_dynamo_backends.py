"""Canaries of torch_internals/dynamo_backends.py, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

from compilefarm.autoload import BACKEND
from compilefarm.torch_internals.dynamo_backends import GROUP, REGISTRY
from tests.lean import LEAN


def _run(program: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, LEAN, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_backend_is_what_the_metadata_say() -> None:
    (found,) = entry_points(group=GROUP, name="compilefarm")
    assert found.value == BACKEND


def test_who_asks_for_the_backend_by_name_imports_none_of_torchs_own() -> None:
    program = """
import sys, torch
from torch._dynamo.backends.registry import lookup_backend
from compilefarm.client.backend import compilefarm
assert lookup_backend("compilefarm") is compilefarm
assert "torch._dynamo.backends.common" not in sys.modules
assert [type(each).__name__ for each in sys.meta_path].count("_Watcher") == 0

# All others are found as always, and ours is the one that the metadata lead to.
assert {"compilefarm", "inductor", "cudagraphs"} <= set(torch._dynamo.list_backends())
assert callable(lookup_backend("aot_eager"))
assert lookup_backend("compilefarm") is compilefarm
"""
    variables = {"COMPILEFARM_DYNAMO": "reuse", "COMPILEFARM_ADDRESS": "127.0.0.1:1"}
    _run(program, **variables)
    # Where Dynamo has been imported before.
    early = "import torch._dynamo\nfrom compilefarm.autoload import load\nimport os\n"
    _run(f"{early}os.environ['COMPILEFARM_DYNAMO'] = 'reuse'\nload()\n{program}", COMPILEFARM_ADDRESS="127.0.0.1:1")


def test_a_registry_of_another_form_is_left_alone() -> None:
    _run(f"""
import sys, types
sys.modules[{REGISTRY!r}] = registry = types.ModuleType("registry")
from compilefarm.torch_internals.dynamo_backends import register_once_imported
register_once_imported("compilefarm", "a:b")
registry._BACKENDS = {{"compilefarm": "of the user"}}
register_once_imported("compilefarm", "a:b")
assert registry._BACKENDS == {{"compilefarm": "of the user"}}
""")
