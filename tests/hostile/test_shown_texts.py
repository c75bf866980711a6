"""Texts of callers and compilers do not steer terminals, and do not pass for entries of a log."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from compilefarm.cli.words import console
from compilefarm.cli.workers import table_of
from compilefarm.service.logs import TextFormatter
from compilefarm.v1.admin_service_pb2 import Worker

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\r\u202ed\n2026-01-01 00:00:00,000 INFO compilefarm: signed by prod"


def test_a_log_entry_is_one_entry() -> None:
    record = logging.LogRecord("compilefarm", logging.WARNING, "", 0, "job %s failed", (HOSTILE,), None)
    first, *rest = TextFormatter().format(record).split("\n")
    assert r"a\x1b]0;owned\x07b\x9b31mc\r\u202ed" in first
    assert rest == ["    2026-01-01 00:00:00,000 INFO compilefarm: signed by prod failed"]


def test_a_table_of_a_farm_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    to = console()
    to.file = written = io.StringIO()
    to.print(table_of([Worker(name="worker-0", problem=HOSTILE)]))
    assert "\x1b" not in written.getvalue()
    assert "\x9b" not in written.getvalue()
    assert r"\x1b]0;owned" in written.getvalue()


def test_styles_are_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    to = console()
    colourful = Console(force_terminal=True, color_system="standard", file=io.StringIO())
    colourful.push_render_hook(to._render_hooks[0])
    colourful.print("[bold]words[/bold]")
    assert "\x1b[1mwords" in colourful.file.getvalue()  # type: ignore[attr-defined]
