"""What an operator types, against a real gateway with scripted workers."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from rich.console import Console

from compilefarm.cli import status
from compilefarm.cli.jobs import keep_refused, show
from compilefarm.cli.main import main
from compilefarm.cli.words import key_words
from compilefarm.core.errors import ProcessDied
from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import ENVIRONMENT, HeldCompiles, ScriptedPool, sample_job, serving_in_thread
from compilefarm.service.testing.pool import OnPhase
from compilefarm.v1.admin_service_pb2 import JobStatus, ListJobsResponse, QuarantinedKey, StatusResponse
from compilefarm.v1.compile_service_pb2 import (
    CompileRequest,
    CompileResponse,
    GraphOutcome,
    GraphReport,
    ReportRequest,
)
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import CompileFailure, Job, Refusal
from tests.hostile.callers import listing

KEY = key_of(sample_job()).text


class Farm:
    """A farm, and the command line of its operator."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self._capsys = capsys

    def ask(self, *arguments: str, status: int = 0) -> str:
        """Runs a command and returns what it prints, its errors among it."""
        assert main([*arguments, "--address", self.address]) == status
        said = self._capsys.readouterr()
        return said.out + said.err

    def json(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(*arguments, "--json"))
        return answer

    @contextmanager
    def asking(self, job: Job) -> Iterator[Iterator[CompileResponse]]:
        """A request for a job that has come to the queue, or further."""
        with grpc.insecure_channel(self.address) as channel:
            events = CompileServiceStub(channel).Compile(CompileRequest(job=job))
            while not next(events).HasField("progress"):
                pass
            yield events


def test_health_is_an_exit_status_and_needs_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "callers.toml").write_text(listing({"somebody": "read"}))
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(tmp_path / "callers.toml"))
    with serving_in_thread(config=config) as address:
        assert main(["health", "--address", address]) == 0
        assert capsys.readouterr().out == "SERVING\n"
    assert main(["health", "--address", address]) == 1
    assert "cannot be reached" in capsys.readouterr().err


class Strange(HealthServicer):
    """Answers with what there is not."""

    def Check(self, request: HealthCheckRequest, context: object) -> HealthCheckResponse:
        return HealthCheckResponse(status=99)  # type: ignore[arg-type]


def test_a_state_that_there_is_not_is_no_health(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_HealthServicer_to_server(Strange(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        assert main(["health", "--address", address]) == 1
    finally:
        server.stop(grace=None).wait()
    assert capsys.readouterr().out == "99\n"


@pytest.fixture
def farm(capsys: pytest.CaptureFixture[str]) -> Iterator[Farm]:
    """Its compiles never end by themselves."""
    with serving_in_thread(pool=ScriptedPool(HeldCompiles())) as address:
        yield Farm(address, capsys)


@pytest.fixture
def deadly_farm(capsys: pytest.CaptureFixture[str]) -> Iterator[Farm]:
    """Its processes die of every graph."""

    async def die(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
        raise ProcessDied(f"worker {worker} lost its process: it was killed by SIGSEGV")

    with serving_in_thread(pool=ScriptedPool(die)) as address:
        yield Farm(address, capsys)


def test_a_farm_without_jobs(farm: Farm) -> None:
    assert farm.ask("jobs") == "no jobs\n"
    assert farm.ask("jobs", "--quarantined") == "no key is quarantined\n"
    assert farm.ask("jobs", "--refused") == "no artifact has failed its check\n"
    assert farm.json("jobs") == {}


def test_checks_are_listed_beside_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    async def never_end(artifact: Artifact) -> Artifact:
        del artifact
        await asyncio.Event().wait()
        raise AssertionError

    config = GatewayConfig(listen="127.0.0.1:0", verify="after")
    with serving_in_thread(pool=ScriptedPool(verify=never_end), config=config) as address:
        farm = Farm(address, capsys)
        with grpc.insecure_channel(address) as channel:
            list(CompileServiceStub(channel).Compile(CompileRequest(job=sample_job())))
        while "worker" not in farm.json("jobs")["checks"][0]:
            pass
        said = farm.ask("jobs")
    assert f" {KEY[:25]} " in said
    assert "check: verifying, worker-0" in said
    assert "nobody" in said


def test_jobs_of_namespaces_say_where_their_results_will_lie() -> None:
    out = io.StringIO()
    jobs = [JobStatus(key=KEY, namespace="team-a"), JobStatus(key=KEY)]
    listed = ListJobsResponse(jobs=jobs, quarantined=[QuarantinedKey(key=KEY, namespace="team-b")])
    show(listed, Console(file=out, width=200))
    beginning = re.escape(key_words(KEY))
    for place in (" in team-a", " ", " in team-b"):
        assert re.search(f"│ {beginning}{place} +│", out.getvalue())


def test_jobs_that_run_and_wait(farm: Farm) -> None:
    with farm.asking(sample_job()), farm.asking(sample_job("torch.sin")):
        said = farm.ask("jobs")
        jobs = farm.json("jobs")["jobs"]
    assert f" {KEY[:25]} " in said
    assert "queued" in said
    assert "interactive" in said
    assert " s, 0 before it" in said
    assert [job["key"] for job in jobs] == [KEY, key_of(sample_job("torch.sin")).text]
    assert jobs[1]["estimated_wait_seconds"] == pytest.approx(60, abs=10)


def test_a_job_is_cancelled(farm: Farm) -> None:
    with farm.asking(sample_job()) as events:
        assert farm.ask("cancel", KEY[:10]) == f"cancelled {KEY}\n"
        with pytest.raises(grpc.RpcError, match="an operator cancelled this job"):
            list(events)
    assert "no job whose key begins with" in farm.ask("cancel", KEY, status=1)


def test_workers(farm: Farm) -> None:
    with farm.asking(sample_job()):
        said = farm.ask("workers")
        (worker,) = farm.json("workers")["workers"]
    assert "worker-0" in said
    assert "torch 2.15.0+cpu" in said
    assert worker["name"] == "worker-0"


def test_refused_keys_are_shown_with_both_errors() -> None:
    refusal = Refusal(result="output 0", error=3.0, eager_error=0.1, allowed_error=0.3, inputs_seed=1)
    failure = CompileFailure(message="it differs", refusal=refusal)
    entries = [QuarantinedKey(key=KEY, failure=failure, refused=True), QuarantinedKey(key="dead", deaths=2)]
    listed = ListJobsResponse(quarantined=entries)
    keep_refused(listed)
    out = io.StringIO()
    show(listed, Console(file=out, width=200), alone="none")
    said = " ".join(out.getvalue().split())
    assert "it differs; error of output 0 3, of eager 0.1, allowed 0.3; inputs of seed 1" in said
    assert "dead" not in said


def test_quarantined_keys_are_shown_and_retried(deadly_farm: Farm) -> None:
    with deadly_farm.asking(sample_job()) as events:
        assert list(events)[-1].finished.HasField("failure")
    said = deadly_farm.ask("jobs", "--quarantined")
    assert KEY[:16] in said
    assert "killed by SIGSEGV" in " ".join(said.replace("│", " ").split())
    assert "quarantine  1; compilefarm jobs --quarantined says why" in deadly_farm.ask("status")
    assert deadly_farm.json("jobs")["quarantined"][0]["key"] == KEY
    assert deadly_farm.ask("retry", KEY[:6]) == f"the next request for {KEY} has it compiled\n"
    assert deadly_farm.ask("jobs", "--quarantined") == "no key is quarantined\n"
    assert "is quarantined" in deadly_farm.ask("retry", KEY, status=1)


def test_a_farm_is_drained(farm: Farm) -> None:
    said = farm.ask("drain")
    assert said.splitlines()[0] == "draining: 0 compiling, 0 waiting"
    assert said.splitlines()[-1].startswith("drained: ")
    assert ", draining, up since" in farm.ask("status")


def test_the_status_tells_what_clients_reported(farm: Farm) -> None:
    assert "clients" not in farm.ask("status")
    hit = GraphReport(outcome=GraphOutcome.GRAPH_OUTCOME_HIT, spent_seconds=2.0, avoided_seconds=75.0)
    fallback = GraphReport(outcome=GraphOutcome.GRAPH_OUTCOME_FALLBACK, reason="timeout", spent_seconds=1.0)
    with grpc.insecure_channel(farm.address) as channel:
        CompileServiceStub(channel).Report(ReportRequest(graphs=[hit, fallback]))
    said = " ".join(farm.ask("status").split())
    assert "clients 2 graphs, 1 fallbacks, 0 not sent to the farm" in said
    assert "75 s of compiling avoided for 3.00 s of waiting, fetching and loading" in said


def test_a_store_that_cannot_be_listed_is_told_with_what_is_known_without_it() -> None:
    said = io.StringIO()
    to = Console(file=said, width=200, markup=False)
    status.show(StatusResponse(farm_version="1", running_jobs=2, store_failure="[bold]the bucket is silent"), to)
    jobs = ListJobsResponse(jobs=[JobStatus(key=KEY)], store_failure="[bold]the bucket is silent")
    show(jobs, to)
    lines = said.getvalue()
    assert "0 waiting, 2 compiling" in lines
    assert lines.count("[bold]the bucket") == 2
    assert "keys in quarantine are not known" in lines
    assert KEY[:16] in lines


def test_the_status_of_many_workers_has_a_line_for_those_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    pool = ScriptedPool(environments=[ENVIRONMENT] * 40)
    for number in range(40):
        pool.move(f"worker-{number}", host=f"host-{number % 2}", node="8f2a" * 14)
    pool.fail("worker-7", problem="no space left")
    with serving_in_thread(pool=pool) as address, grpc.insecure_channel(address) as channel:
        farm = Farm(address, capsys)
        for _ in range(2):
            list(CompileServiceStub(channel).Compile(CompileRequest(job=sample_job())))
        said, listed = farm.ask("status"), farm.ask("workers")
        (user,) = farm.json("status")["device_seconds"]
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in said.splitlines() if "host-" in line]
    assert rows == [["20", "host-0", "8f2a8f2a"], ["1", "host-1", "8f2a8f2a"], ["19", "host-1", "8f2a8f2a"]]
    assert "worker-7" not in said
    assert "worker-7" in listed
    assert re.search(r"devices +no tenant: [\d.]+ m?µ?s of a CPU worker spent, [\d.]+ m?µ?s avoided", said)
    assert user["device"] == "cpu"


def test_the_status_tells_what_the_farm_is_ready_for(farm: Farm) -> None:
    assert ", serving, up since" in farm.ask("status")
    assert farm.json("status")["state"] == "FARM_STATE_SERVING"
