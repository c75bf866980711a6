"""What times and counts the parts of a call."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from .phases import python_calls, timing_imports


def test_an_import_counts_with_what_it_was_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_of_phases.py").write_text("import inner_of_phases")
    (tmp_path / "inner_of_phases.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with timing_imports() as seconds:
        importlib.import_module("outer_of_phases")
    assert list(seconds) == ["outer_of_phases"]
    assert "inner_of_phases" in sys.modules


def test_functions_of_python_are_counted_and_others_are_not() -> None:
    def inner() -> int:
        return len([1])

    def outer() -> int:
        return inner() + inner()

    found = python_calls(outer)
    assert sorted(name.rpartition(".")[2] for name in found.elements()) == ["inner", "inner", "outer"]
