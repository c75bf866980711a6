"""Log lines that lead from a request to its job and back."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from compilefarm.core.errors import ProcessDied
from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.log_context import job_key, request_id
from compilefarm.service.logs import JsonFormatter, TextFormatter
from compilefarm.service.testing import HeldCompiles, ScriptedPool, calling, sample_job, serving
from compilefarm.service.testing.pool import OnPhase

JOB = sample_job()
KEY = key_of(JOB).text


@contextmanager
def logging_to(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """What the gateway logs meanwhile."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    logger = logging.getLogger("compilefarm")
    logger.addHandler(handler)
    try:
        yield written
    finally:
        logger.removeHandler(handler)


def parsed(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


async def die(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
    """What a worker does whose process dies: it logs, and gives up."""
    logging.getLogger("compilefarm.worker").warning("the last words of a child")
    raise ProcessDied("it was killed by SIGSEGV")


async def test_every_line_about_a_job_names_it_and_the_request_that_it_was_begun_for() -> None:
    with logging_to(JsonFormatter()) as written:
        async with serving(pool=ScriptedPool(die)) as gateway, calling(gateway.address) as calls:
            watch = await calls.watch(JOB, request_id="pod-7/graph-3")
            await watch.finish()
    lines = [line for line in parsed(written) if line.get("job")]
    assert {line["logger"] for line in lines} >= {"compilefarm.service.job_log", "compilefarm.worker"}
    assert {(line["job"], line["request"]) for line in lines} == {(KEY, "pod-7/graph-3")}


async def test_a_request_that_joins_a_job_says_so_under_its_own_name() -> None:
    held = HeldCompiles()
    with logging_to(JsonFormatter()) as written:
        async with serving(pool=ScriptedPool(held)) as gateway, calling(gateway.address) as calls:
            first = await calls.watch(JOB, request_id="first")
            compile_ = await held.next()
            second = await calls.watch(JOB, request_id="second")
            await second.next()
            compile_.finish()
            await first.finish()
            await second.finish()
    requests = [(line["request"], line["message"].partition(": ")[2]) for line in parsed(written) if "request" in line]
    assert ("first", "3 nodes, queued") in requests
    assert ("second", "joined by another request") in requests


@pytest.mark.parametrize("told", ["", "has spaces in it", "x" * 65, 'quote"'])
async def test_a_request_that_is_not_named_well_gets_a_name(told: str) -> None:
    with logging_to(JsonFormatter()) as written:
        async with serving(pool=ScriptedPool(die)) as gateway, calling(gateway.address) as calls:
            for _ in range(2):
                await (await calls.watch(JOB, request_id=told)).finish()
                await calls.status()
    (named,) = {line["request"] for line in parsed(written) if "request" in line}
    assert len(named) == 16
    assert named != told


def test_a_line_of_json_holds_what_is_known() -> None:
    with logging_to(JsonFormatter()) as written:
        logger = logging.getLogger("compilefarm.test")
        logger.warning("two\nlines, %d %s", 7, "é")
        try:
            raise ValueError("a defect")
        except ValueError:
            logger.exception("it broke")
    first, second = parsed(written)
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "warning", "logger": "compilefarm.test", "message": "two\nlines, 7 é"}
    assert "ValueError: a defect" in second["exception"]


async def test_a_line_for_people_ends_with_the_request() -> None:
    with logging_to(TextFormatter()) as written:
        logging.getLogger("compilefarm.test").warning("outside")
        async with serving(pool=ScriptedPool(die)) as gateway, calling(gateway.address) as calls:
            await (await calls.watch(JOB, request_id="ab12")).finish()
    outside, *lines = written.getvalue().splitlines()
    assert outside.endswith("WARNING compilefarm.test: outside")
    assert any(line.endswith(f"job {KEY}: 3 nodes, queued [request ab12]") for line in lines)


async def test_what_the_gateway_does_of_itself_is_nobodys_request() -> None:
    async with serving() as gateway, calling(gateway.address) as calls:
        await calls.finish(JOB)
        assert (request_id.get(), job_key.get()) == ("", "")
