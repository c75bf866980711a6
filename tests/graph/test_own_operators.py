"""Operators that a process has registered itself are told from torch's and from those of installed libraries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compilefarm.core.distributions import is_of_library_of_torch
from compilefarm.graph.operators import NAMESPACES_OF_TORCH
from compilefarm.graph.own_operators import FURTHER_OF_TORCH
from tests.lean import LEAN

# Parts of torch that register operators in Python when they are imported, and a compile, which imports others.
PROGRAM = """
import importlib, json, torch
for part in (
    "_inductor.fx_passes.post_grad", "_inductor.test_operators", "distributed.fsdp", "distributed.tensor",
    "distributed._symmetric_memory", "nn.attention.flex_attention", "onnx", "utils._debug_mode",
):
    importlib.import_module(f"torch.{part}")
torch.compile(lambda x: torch.mm(x, x))(torch.ones(2, 2))
from compilefarm.graph.own_operators import OwnOperators
from compilefarm.graph.registrations import kernels_from_python
from compilefarm.torch_internals.registrations import implementations_from_python
namespaces = {entry.partition("/")[0] for entry in implementations_from_python()}
print(json.dumps([OwnOperators().digest(kernels_from_python()), sorted(namespaces)]))
"""
OF_A_LIBRARY = (
    "import LIBRARY; from compilefarm.graph.own_operators import OwnOperators; "
    "from compilefarm.graph.registrations import kernels_from_python; "
    "print([OwnOperators().digest(kernels_from_python())])"
)
LATE = """
import json, torch
from compilefarm.graph.own_operators import OwnOperators
from compilefarm.graph.registrations import kernels_from_python
from tests.graph.test_own_operators import backward, halved
operators = OwnOperators()
made = torch.library.custom_op("registered_late::f", halved, mutates_args=())
before = operators.digest(kernels_from_python())
made.register_autograd(backward)
print(json.dumps([before, operators.digest(kernels_from_python())]))
"""
# As in a notebook.
WITHOUT_SOURCE = """
import torch
from compilefarm.graph.own_operators import OwnOperators
from compilefarm.graph.registrations import kernels_from_python

@torch.library.custom_op("without_source::f", mutates_args=())
def f(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

OwnOperators().digest(kernels_from_python())
"""


def test_what_torch_registers_is_torchs() -> None:
    """A namespace that a new torch has belongs into the table: keys would differ by what a pod has imported."""
    ran = subprocess.run([sys.executable, LEAN, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    digest, namespaces = json.loads(ran.stdout.splitlines()[-1])
    assert digest == ""
    assert set(namespaces) <= NAMESPACES_OF_TORCH | FURTHER_OF_TORCH


def told(program: str) -> str:
    """The last line that a program prints, in a process of its own: other tests register operators as well."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", LEAN, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment)
    return ran.stdout.splitlines()[-1]


def test_operators_of_an_installed_library_are_known_by_its_version() -> None:
    assert told(OF_A_LIBRARY.replace("LIBRARY", "torchvision")) == "['']"


def test_kernels_that_torch_has_wrapped_are_of_who_wrote_them() -> None:
    """A pod that has imported torchao would read sources of it for a second, at its first lookup."""
    assert told(OF_A_LIBRARY.replace("LIBRARY", "torchao.quantization")) == "['']"


def test_a_gradient_that_is_registered_later_is_seen() -> None:
    before, after = json.loads(told(LATE))
    assert before
    assert after not in (before, "")


def test_an_operator_without_a_source_is_none_that_can_be_told_apart() -> None:
    ran = subprocess.run([sys.executable, LEAN, "-c", WITHOUT_SOURCE], capture_output=True, text=True, timeout=300)
    assert ran.returncode != 0
    assert "Bypass: what the operator without_source::f does cannot be said" in ran.stderr


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def test_what_lies_in_no_library_of_which_keys_say_the_version_is_own(tmp_path: Path) -> None:
    vision = importlib.util.find_spec("torchvision")
    assert vision is not None
    assert vision.origin is not None
    assert is_of_library_of_torch(Path(vision.origin))
    # It is installed, and nobody says that it needs torch.
    assert not is_of_library_of_torch(Path(pytest.__file__).resolve())
    assert not is_of_library_of_torch(tmp_path / "library.so")
