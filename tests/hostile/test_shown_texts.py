"""Texts of callers and compilers do not steer terminals, and do not pass for entries of a log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console

from compilefarm.cli.words import console
from compilefarm.cli.workers import table_of
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import CompileFailed
from compilefarm.client.farm import Farm
from compilefarm.client.testing import FakeGraphModule, FakeRuntime, FarmServicer
from compilefarm.client.testing import serving as serving_farm
from compilefarm.core.errors import NotAuthenticated
from compilefarm.core.keys import key_of
from compilefarm.core.printable import printable
from compilefarm.service.config import GatewayConfig
from compilefarm.service.logs import TextFormatter
from compilefarm.service.testing import Refused, calling, serving
from compilefarm.v1.admin_service_pb2 import Worker
from compilefarm.v1.compile_service_pb2 import OUTCOME_COMPILED, Accepted, CompileResponse, Finished
from compilefarm.v1.job_pb2 import FAILURE_KIND_COMPILE_ERROR, CompileFailure
from tests.hostile.callers import listing

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\r\u202ed\n2026-01-01 00:00:00,000 INFO compilefarm: signed by prod"


def test_a_log_entry_is_one_entry() -> None:
    record = logging.LogRecord("compilefarm", logging.WARNING, "", 0, "job %s failed", (HOSTILE,), None)
    first, *rest = TextFormatter().format(record).split("\n")
    assert r"a\x1b]0;owned\x07b\x9b31mc\r\u202ed" in first
    assert rest == ["    2026-01-01 00:00:00,000 INFO compilefarm: signed by prod failed"]


class HostileFarm(FarmServicer):
    """Refuses every compile with a text of its own, or fails it."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self._fails = fails

    def Compile(self, request: Any, context: Any) -> Iterator[CompileResponse]:
        if not self._fails:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, HOSTILE)
        yield CompileResponse(accepted=Accepted(key=key_of(request.job).text))
        failure = CompileFailure(kind=FAILURE_KIND_COMPILE_ERROR, error_type=HOSTILE, message=HOSTILE)
        yield CompileResponse(finished=Finished(outcome=OUTCOME_COMPILED, failure=failure))


@pytest.mark.parametrize("fails", [True, False], ids=["failure", "refusal"])
def test_the_log_of_a_pod_has_one_line_without_control_characters(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with serving_farm(HostileFarm(fails=fails)) as address:
        dependencies = Dependencies(runtime=FakeRuntime())
        with closing(Farm(address, dependencies=dependencies)) as farm:
            assert farm.backend(FakeGraphModule(), [])()[0] == "local"
        strict = Farm(address, on_failure="error", dependencies=dependencies)
        with closing(strict), pytest.raises((NotAuthenticated, CompileFailed)) as raised:
            strict.backend(FakeGraphModule(), [])
    (line,) = [record.getMessage() for record in caplog.records if record.name == "compilefarm.client"][:1]
    assert r"a\x1b]0;owned\x07b\x9b31mc" in line
    assert line.isprintable()
    assert printable(str(raised.value)) == str(raised.value)


def test_a_table_of_a_farm_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    to = console()
    to.file = written = io.StringIO()
    to.print(table_of([Worker(name="worker-0", problem=HOSTILE)]))
    assert "\x1b" not in written.getvalue()
    assert "\x9b" not in written.getvalue()
    assert r"\x1b]0;owned" in written.getvalue()


def test_brackets_of_a_farm_are_shown_as_they_are() -> None:
    text = "[/closes nothing] [link=http://example.org]a link[/link] :skull:"
    to = console()
    to.file = written = io.StringIO()
    to.print(table_of([Worker(name="worker-0", problem=text)]))
    to.print(text)
    assert written.getvalue().count(text) == 2


def test_styles_are_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    to = console()
    colourful = Console(force_terminal=True, color_system="standard", file=io.StringIO())
    colourful.push_render_hook(to._render_hooks[0])
    colourful.print("[bold]words[/bold]")
    assert "\x1b[1mwords" in colourful.file.getvalue()  # type: ignore[attr-defined]


async def test_a_log_is_not_filled_with_what_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "callers.toml").write_text(listing({"one": "compile"}))
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(tmp_path / "callers.toml"))
    caplog.set_level(logging.INFO)
    async with serving(config=config) as gateway, calling(gateway.address) as stranger:
        for _ in range(20):
            with pytest.raises(Refused, match="asks who calls"):
                await stranger.status()
    assert sum("is refused to" in record.message for record in caplog.records) == 1
