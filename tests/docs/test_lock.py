"""How versions of dependencies are locked."""

from __future__ import annotations

import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def commands_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[list[str]]:
    """What `dev.py lock` runs, and where it sets up an environment."""
    dev = runpy.run_path(str(ROOT / "dev.py"))
    commands: list[list[str]] = []

    def set_up(end: str) -> Path:
        commands.append(["set up", end])
        return Path(end)

    def call(_: Path, command: Sequence[str]) -> int:
        commands.append([*command])
        return 0

    monkeypatch.setitem(dev["main"].__globals__, "set_up", set_up)
    monkeypatch.setitem(dev["main"].__globals__, "call", call)
    monkeypatch.setattr("sys.argv", ["dev.py", "lock", *arguments])
    assert dev["main"]() == 0
    return commands


def test_both_ends_are_resolved_and_programs_run_with_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    first, oldest, newest, wild, again, run = commands_of(monkeypatch, "--codec", "gpt2")
    assert (first, again) == (["set up", "newest"], ["set up", "wild"])
    assert [(each[each.index("--resolution") + 1], each[-1]) for each in (oldest, newest)] == [
        ("lowest-direct", "requirements/oldest.txt"),
        ("highest", "requirements/newest.txt"),
    ]
    assert "--upgrade" not in oldest
    # What the newest end has stays as it is there.
    assert wild[wild.index("--overrides") + 1] == newest[-1] != wild[-1]
    assert run == ["python", "-m", "tests.wild", "--codec", "gpt2"]


def test_all_versions_are_resolved_anew_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _, *resolved, _, _ = commands_of(monkeypatch, "--upgrade")
    assert ["--upgrade" in each for each in resolved] == [True, True, True]


def test_the_programs_of_other_libraries_run_with_versions_that_are_locked() -> None:
    newest, wild = (_versions(end) for end in ("newest", "wild"))
    assert newest.items() <= wild.items()
    # Each program begins with the name of what it needs.
    folder = ROOT / "tests" / "wild" / "programs"
    texts = ((folder / f"{name}.py").read_text() for name in ("others", "domains"))
    needed = {name for text in texts for name in re.findall(r"\((?:name=)?\"([a-z0-9-]+): ", text)}
    assert len(needed) > 50
    assert needed <= wild.keys()


def _versions(end: str) -> dict[str, str]:
    locked = (ROOT / "requirements" / f"{end}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", locked, re.MULTILINE))
