"""Programs whose files lie elsewhere in another pod, or differ there in what is not traced, are reused as a whole; what
these say of their lines is as it is there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reuse.processes import Pod, pod

_SOURCE = """
import sys
import torch

@torch._dynamo.disable
def line_of_caller():
    return sys._getframe(1).f_lineno

def doubled(x):
    x = sum([x * factor for factor in (1, 1)])
    torch._dynamo.graph_break()
    return sum([x + each for each in (x, x)])

def not_traced():
    return {}

# {}
def says_line(x):
    x = x * 2
    {}
    return x + line_of_caller()

def says_first_line(x):
    return x + says_line.__code__.co_firstlineno

def catches(x):
    try:
        raise ValueError
    except ValueError as error:
        return x + error.__traceback__.tb_lineno
"""


def _source(folder: Path, *edits: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the source, with something else written at its three places."""
    folder.mkdir()
    file = folder / "moved_source.py"
    file.write_text(_SOURCE.format(*edits))
    spec = importlib.util.spec_from_file_location("moved_source", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "moved_source", module)
    spec.loader.exec_module(module)
    return module


def test_a_function_of_another_place_is_reused_with_its_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    for number, publishes in enumerate((True, False)):
        function = _source(tmp_path / str(number), str(number), "", "", monkeypatch=monkeypatch).doubled
        torch.compiler.reset()
        with pod(tmp_path, publishes=publishes) as own:
            found = torch.compile(function, backend=own.backend)(x)
        assert found.tolist() == [8.0, 8.0]
    assert [each.function for each in own.outcomes] == ["doubled", "torch_dynamo_resume_in_doubled_at_11"]
    assert own.traced == []


def _edited(folder: Path, name: str, *edits: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Pod, Pod]:
    """The first pod, and a second one in which the source was edited, whose function is as right as it is there."""
    x, pods = torch.ones(2), []
    for number, written in enumerate((("1", "", ""), edits)):
        function = getattr(_source(folder / str(number), *written, monkeypatch=monkeypatch), name)
        torch.compiler.reset()
        with pod(folder, publishes=number == 0) as own:
            found = torch.compile(function, backend=own.backend)(x)
        assert found.tolist() == function(x).tolist()
        pods.append(own)
    return pods[0], pods[1]


def test_lines_are_those_of_this_pod_where_a_function_stands_further_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, again = _edited(tmp_path, "says_line", "1", "\n# more\n", "", monkeypatch=monkeypatch)
    assert again.traced == []


def test_a_function_whose_own_lines_differ_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, again = _edited(tmp_path, "says_line", "1", "", "# more\n\n", monkeypatch=monkeypatch)
    assert again.traced[0] == "the state lines of the function is another"


def test_code_that_is_asked_for_its_line_is_of_this_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, again = _edited(tmp_path, "says_first_line", "1", "\n# more\n", "", monkeypatch=monkeypatch)
    assert len(again.traced) == 1


def test_nothing_rests_on_the_line_of_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = _edited(tmp_path, "catches", "1", "\n# more\n", "", monkeypatch=monkeypatch)
    assert first.unpublished == [("catches", "the line of a source in which an exception was raised")]
