"""Programs whose files lie elsewhere in another pod, or differ there in what is not traced, are reused as a whole."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reuse.processes import pod

_SOURCE = """
import torch

def doubled(x):
    x = sum([x * factor for factor in (1, 1)])
    torch._dynamo.graph_break()
    return sum([x + each for each in (x, x)])

def not_traced():
    return {}
"""


def _doubled(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder.mkdir()
    file = folder / "moved_source.py"
    file.write_text(_SOURCE.format(number))
    spec = importlib.util.spec_from_file_location("moved_source", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "moved_source", module)
    spec.loader.exec_module(module)
    return module.doubled


def test_a_function_of_another_place_is_reused_with_its_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    for number, publishes in enumerate((True, False)):
        function = _doubled(tmp_path / str(number), number, monkeypatch)
        torch.compiler.reset()
        with pod(tmp_path, publishes=publishes) as own:
            found = torch.compile(function, backend=own.backend)(x)
        assert found.tolist() == [8.0, 8.0]
    assert [each.function for each in own.outcomes] == ["doubled", "torch_dynamo_resume_in_doubled_at_6"]
    assert own.traced == []
