"""Pods and farms of two releases, whose keys have different formats: they use one that both know, or compare parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.options import Options
from compilefarm.client.records import GraphRecord, Ledger
from compilefarm.client.runtime import Encoded
from compilefarm.client.testing import FakeGraphModule, FakeRuntime
from compilefarm.core import keys
from compilefarm.core.keys import PART_NAMES, UNNAMED_FORMAT, Part, find_foreign_parts, key_of
from compilefarm.core.requests import Request
from compilefarm.service.testing import sample_job
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job, Symbol
from compilefarm.v1.manifest_pb2 import Manifest

OTHER_RELEASE = Path(__file__).with_name("other_release.py")
OURS = keys.newest_format()
# As an earlier release could have it: what is known of sizes is no part of the key.
WITHOUT_SYMBOLS = tuple(name for name in PART_NAMES if name != "symbols")
JOB = sample_job()
SIZED_JOB = sample_job()
SIZED_JOB.symbols.append(Symbol(lower=2))
SIZED_JOB.hints.append(7)
Serve = Callable[[Mapping[int, Sequence[str]]], str]


class Runtime(FakeRuntime):
    """Says a job that a gateway takes, whatever the graph."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._request = Request(job=job, blobs={})

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        del graph_module, example_inputs, options
        self.environment = self._request.job.environment
        return self.encode_request(self._request, is_guarded=True)

    def require_fit(self, manifest: Manifest, environment: Environment) -> None:
        """What scripted workers make fits everywhere."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a farm of another release on one store; the one before is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(formats: Mapping[int, Sequence[str]]) -> str:
        stop()
        command = [sys.executable, OTHER_RELEASE, json.dumps(formats), tmp_path]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout is not None
        return running[-1].stdout.readline().strip()

    def stop() -> None:
        for process in running:
            process.kill()
            process.communicate()

    yield start
    stop()


def ask(address: str, job: Job = JOB) -> GraphRecord:
    """What becomes of a graph in a pod of this release."""
    ledger = Ledger()
    farm = Farm(address, dependencies=Dependencies(runtime=Runtime(job), ledger=ledger))
    assert farm.backend(FakeGraphModule(), [])()[0] in ("farm", "local")
    farm.close()
    (record,) = ledger.records()
    return record


@pytest.fixture
def older_pod() -> Iterator[None]:
    """Pods of this test are of the release that made keys without symbols."""
    with patch.dict(keys.FORMATS, {OURS: WITHOUT_SYMBOLS}, clear=True):
        yield


@pytest.mark.usefixtures("older_pod")
def test_a_newer_farm_answers_in_the_format_of_the_pod(serve: Serve) -> None:
    address = serve({OURS: WITHOUT_SYMBOLS, OURS + 1: PART_NAMES})
    record = ask(address, SIZED_JOB)
    assert (record.outcome, record.key) == ("compiled", key_of(SIZED_JOB).text)
    assert ask(address, SIZED_JOB).outcome == "hit"


@pytest.mark.usefixtures("older_pod")
@pytest.mark.parametrize("parts", [WITHOUT_SYMBOLS, PART_NAMES, PART_NAMES[::-1]], ids=["same", "more", "other order"])
def test_a_newer_farm_that_knows_no_format_of_the_pod_is_believed_where_all_parts_agree(
    serve: Serve, parts: Sequence[str]
) -> None:
    address = serve({OURS + 1: parts})
    record = ask(address)
    assert (record.outcome, record.reason) == ("compiled", "")
    assert record.key != key_of(JOB).text
    assert ask(address).outcome == "hit"


@pytest.mark.usefixtures("older_pod")
def test_a_part_that_the_pod_does_not_know_is_named(serve: Serve) -> None:
    record = ask(serve({OURS + 1: PART_NAMES}), SIZED_JOB)
    assert (record.outcome, record.reason) == ("fallback", "untrusted_artifact")
    assert "differs in 'symbols' (a part of keys that this release does not know)" in record.message


@pytest.mark.usefixtures("older_pod")
def test_a_newer_pod_takes_what_an_older_farm_has(serve: Serve) -> None:
    address = serve({OURS: WITHOUT_SYMBOLS})
    older = key_of(SIZED_JOB).text
    with patch.dict(keys.FORMATS, {OURS + 1: PART_NAMES}):
        record = ask(address, SIZED_JOB)
        assert record.key != key_of(SIZED_JOB).text
    assert (record.outcome, record.key) == ("compiled", older)


def test_a_format_whose_artifacts_may_be_wrong_is_refused(serve: Serve) -> None:
    record = ask(serve({OURS - 1: PART_NAMES}))
    assert (record.outcome, record.reason) == ("fallback", "untrusted_artifact")
    assert f"the farm makes keys of format {OURS - 1}, and this release knows {OURS}: upgrade" in record.message


def test_what_an_older_release_had_accepted_is_done_and_forgotten(serve: Serve, tmp_path: Path) -> None:
    """A job in the journal, whose key is of a format that the next release does not know."""
    from compilefarm.v1.journal_pb2 import AcceptedJob

    state = tmp_path / "state"
    state.mkdir()
    accepted = AcceptedJob(key=f"{'0' * 16}-{'1' * 64}", job=JOB, namespaces=[""], key_format=OURS)
    accepted.accepted.GetCurrentTime()
    (state / f"{accepted.key}-{'2' * 64}").write_bytes(accepted.SerializeToString())
    address = serve({OURS + 1: PART_NAMES})
    left = tmp_path / "store" / "journal"
    while ask(address).outcome != "hit" or any(names for _, _, names in os.walk(left)):
        pass
    assert list(state.iterdir()) == []


def parts_of(job: Job) -> list[Part]:
    return list(key_of(job).parts)


def test_a_key_that_is_not_made_of_its_parts_says_nothing() -> None:
    other = sample_job("torch.sin")
    for format in (OURS, OURS + 1):
        assert find_foreign_parts(key_of(other).text, format=format, parts=parts_of(JOB), job=JOB) is None
    assert find_foreign_parts(key_of(other).text, format=OURS, parts=parts_of(other), job=JOB) == ["graph"]
    assert find_foreign_parts("", format=OURS + 1, parts=[], job=JOB) is None


def test_each_part_that_differs_is_named() -> None:
    other = sample_job(environment=Environment(torch="3.0"))
    other.options.inductor.add(name="max_autotune")
    differing = find_foreign_parts(key_of(other).text, format=OURS, parts=parts_of(other), job=JOB)
    assert differing == ["options", "environment"]


def test_a_farm_without_a_word_of_formats_made_the_third() -> None:
    """What was stored under that may be wrong by now."""
    assert keys.choose_format(()) == OURS > UNNAMED_FORMAT
    assert find_foreign_parts(key_of(JOB).text, format=UNNAMED_FORMAT, parts=parts_of(JOB), job=JOB) is None
    with patch.dict(keys.FORMATS, {UNNAMED_FORMAT: PART_NAMES}, clear=True):
        key = key_of(JOB)
        assert keys.choose_format(()) == UNNAMED_FORMAT
        assert find_foreign_parts(key.text, format=UNNAMED_FORMAT, parts=[], job=JOB) == []
