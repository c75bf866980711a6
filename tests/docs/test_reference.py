"""The reference lists what the code defines, and every word that the code uses is defined."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from compilefarm.cli.main import COMMANDS
from compilefarm.client.config import SETTINGS
from compilefarm.client.records import OUTCOMES, Outcome
from compilefarm.core import retargeting
from compilefarm.core.errors import BY_REASON
from compilefarm.graph import bypass
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.flags import flags_of
from compilefarm.v1.job_pb2 import FailureKind

from .programs import ROOT, load_program

SOURCES = [
    path
    for folder in ("proto", "client", "service", "worker")
    for path in (ROOT / folder / "compilefarm").rglob("*.py")
]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_program("reference")


def reasons_raised(name: str) -> set[str]:
    """The words with which an exception of that name is raised anywhere."""
    calls = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == name and call.args]
    return {argument.value for argument in named if isinstance(argument, ast.Constant)}


def test_the_reference_is_current(reference: ModuleType) -> None:
    assert reference.main(["--check"]) == 0


def test_a_stale_reference_is_noticed(
    reference: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "reference.md"
    assert reference.main(["--check", "--page", str(page)]) == 1
    page.write_text(reference.PAGE.read_text().replace("`--queue-limit`", "`--queue`"))
    assert reference.main(["--check", "--page", str(page)]) == 1
    assert f"{page} is not current; run: python docs/reference.py" in capsys.readouterr().out
    assert reference.main(["--page", str(page)]) == 0
    assert page.read_text() == reference.PAGE.read_text()


def test_everything_is_listed_with_a_sentence(reference: ModuleType) -> None:
    rows = [line.split(" | ") for line in reference.render().splitlines() if line.startswith("| `")]
    listed = {cell.strip("|` ") for row in rows for cell in row[:2]}
    assert listed >= {setting.variable for setting in SETTINGS if setting.variable}
    assert listed >= {flag.name if flag.kind == "tables" else f"--{flag.name}" for flag in flags_of(ServeConfig)}
    assert listed >= BY_REASON.keys() - {"farm_error"}
    kinds = {name.removeprefix("FAILURE_KIND_").lower() for name in FailureKind.keys()}  # noqa: SIM118 - an enum of protobuf is no mapping
    assert listed >= kinds - {"unspecified"}
    assert {f"### compilefarm {name}" for name in COMMANDS} <= set(reference.render().splitlines())
    for row in rows:
        assert row[-1].rstrip(" |").endswith("."), row


def test_every_bypass_has_a_listed_reason_and_every_listed_reason_is_used() -> None:
    assert reasons_raised("Bypass") == set(bypass.REASONS)


def test_every_request_that_cannot_be_made_for_another_environment_has_a_listed_reason() -> None:
    assert reasons_raised("CannotRetarget") == set(retargeting.REASONS)


def test_every_outcome_is_described() -> None:
    assert set(get_args(Outcome)) == set(OUTCOMES)


def test_every_error_is_described() -> None:
    for error in BY_REASON.values():
        assert error.__doc__, error
        assert error.__doc__.split("\n")[0].endswith("."), error
