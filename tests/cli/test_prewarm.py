"""`compilefarm prewarm` against a real gateway with scripted workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from compilefarm.cli.main import main
from compilefarm.core.digests import digest_of
from compilefarm.core.pool import Artifact, Assignment, DeclaredEnvironment
from compilefarm.core.recorder import Recorder
from compilefarm.core.recordings import MANIFEST, RecordedBypass
from compilefarm.core.requests import Request
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import ENVIRONMENT, ScriptedPool, sample_job, serving_in_thread
from compilefarm.service.testing.pool import OnPhase, Script, compile_at_once
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_caches
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import NamedValue, TargetKind, Value
from compilefarm.v1.job_pb2 import FAILURE_KIND_TIMEOUT, CompileFailure, Job
from compilefarm.v1.manifest_pb2 import Signature
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.package_service_pb2 import FindRequest
from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub
from compilefarm.v1.request_file_pb2 import CompileArguments
from compilefarm.v1.vocabulary_pb2 import Mode, TargetNames, Vocabulary

OLDER = Environment(torch="2.11.0+cpu", torch_build="fedcba", python_abi=ENVIRONMENT.python_abi, cpu=ENVIRONMENT.cpu)
GRAPHS = ("torch.relu", "torch.sin", "torch.cos")
FAILURE = CompileFailure(kind=FAILURE_KIND_TIMEOUT, message="the compile took longer than 1 s")


def vocabulary(*functions: str) -> Vocabulary:
    slow = Mode(name="slow", options=[NamedValue(name="max_autotune", value=Value(boolean=True))])
    targets = [TargetNames(kind=TargetKind.TARGET_KIND_TORCH_FUNCTION, names=functions)]
    return Vocabulary(
        targets=targets, modes=[slow], inductor=[NamedValue(name="max_autotune", value=Value(boolean=False))]
    )


def record(folder: Path, *jobs: Job, tensors: bool = True, blobs: Sequence[bytes] = ()) -> Path:
    recorder = Recorder(folder, tensors=tensors)
    for position, job in enumerate(jobs):
        held = {digest_of(blob): blob for blob in blobs}
        request = Request(job=job, blobs=held, arguments=CompileArguments())
        recorder.note_request(request, name=f"graph {position}", position=position)
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record(tmp_path / "recording", *map(sample_job, GRAPHS))


class Operator:
    """An operator at the command line of a farm."""

    def __init__(self, address: str, pool: ScriptedPool, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self.pool = pool
        self._capsys = capsys

    def type(self, step: str, *arguments: str | Path, status: int = 0) -> str:
        """Runs a step of prewarming and returns what it prints."""
        assert main(["prewarm", step, *map(str, arguments), "--address", self.address]) == status
        said = self._capsys.readouterr()
        return " ".join(f"{said.out} {said.err}".split())

    def json(self, step: str, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
        assert main(["prewarm", step, *map(str, arguments), "--json", "--address", self.address]) == status
        data: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return data


@contextmanager
def operating(
    capsys: pytest.CaptureFixture[str],
    *,
    script: Script = compile_at_once,
    config: GatewayConfig | None = None,
    caches: EntryStore | None = None,
) -> Iterator[Operator]:
    pool = ScriptedPool(
        script,
        environments=[ENVIRONMENT, OLDER],
        names=["default", "older"],
        vocabularies=[vocabulary(*GRAPHS), vocabulary("torch.relu", "torch.cos")],
    )
    with serving_in_thread(pool=pool, config=config, caches=caches) as address:
        yield Operator(address, pool, capsys)


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    with operating(capsys) as operator:
        yield operator


def test_from_a_recording_to_a_farm_that_has_it_all(operator: Operator, recording: Path) -> None:
    assert operator.json("plan", recording)["totals"] == {
        "hit": 0,
        "miss": 3,
        "under_way": 0,
        "cannot": 0,
        "bypasses": 0,
    }
    assert "0 % of the graphs are stored: 0 of 3; too little" in operator.type("check", recording, status=1)
    said = operator.type("run", recording)
    assert "3 of 3 graphs are served: 3 compiled" in said
    assert "3 served, 0 failed, 0 left" in said
    assert "100 % of the graphs are stored: 3 of 3; enough" in operator.type("check", recording)
    assert operator.json("run", recording)["totals"]["hit"] == 3
    assert len(operator.pool.assignments) == 3


def test_a_plan_names_what_cannot_be_served_and_why(operator: Operator, tmp_path: Path) -> None:
    elsewhere = sample_job(environment=Environment(torch="1.0.0"))
    recording = record(tmp_path / "recording", sample_job("torch.relu"), elsewhere)
    Recorder(recording).note_bypass(RecordedBypass(reason="tensor_subclass", message="a tensor is a DTensor", nodes=3))
    said = operator.type("plan", recording)
    for words in (
        "to be compiled",
        "cannot be served",
        "1 cannot be served, no_worker: no worker can compile for torch 1.0.0",
        "graph 0 (3 nodes, 1x) is never sent to a farm, tensor_subclass: a tensor is a DTensor",
    ):
        assert words in said
    report = operator.json("run", recording, status=1)
    assert [(each["outcome"], each["reason"]) for each in report["graphs"]] == [
        ("failed", "no_worker"),
        ("compiled", ""),
    ]
    check = operator.json("check", recording, status=1)
    # A pod that is strict fails at a bypass, too.
    assert (check["stored"], check["graphs"], check["enough"]) == (1, 3, False)
    assert operator.json("check", recording, "--threshold", "33")["enough"]


def test_for_another_environment_of_the_farm(operator: Operator, recording: Path) -> None:
    plan = operator.json("plan", recording, "--environment", "older")
    assert [graph["standing"] for graph in plan["graphs"]] == ["miss", "cannot", "miss"]
    assert plan["graphs"][1]["problem"] == "torch 2.11.0+cpu has no function torch.sin"
    report = operator.json("run", recording, "--environment", "older", status=1)
    assert report["totals"]["compiled"] == 2
    assert {assignment.job.environment.torch for assignment in operator.pool.assignments} == {"2.11.0+cpu"}
    assert operator.json("check", recording, "--environment", "older", "--threshold", "66")["stored"] == 2
    assert "known are default, older" in operator.type("plan", recording, "--environment", "newer", status=1)


def test_packages_are_published_as_they_were_signed(
    capsys: pytest.CaptureFixture[str], recording: Path, tmp_path: Path
) -> None:
    signature = Signature(key_id="k" * 16, value=b"s" * 64)
    package = SignedPackage(key=f"{'a' * 16}-{'b' * 64}", name="c" * 64, content=b"content", signature=signature)
    Recorder(recording).note_package(package, function="Model.forward")
    caches = asyncio.run(open_caches(str(tmp_path / "farm"), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with operating(capsys, caches=caches) as operator:
        standing = [each["standing"] for each in operator.json("plan", recording)["packages"]]
        assert standing == ["missing"]
        said = operator.type("run", recording, "--mode", "slow")
        assert "1 packages of Dynamo: 1 left out, since they hold for the environment and the mode" in said
        operator.type("check", recording, "--mode", "slow")
        assert not operator.json("check", recording, status=1)["enough"]
        assert "and 0 % of the packages; too little, 100 % are wanted" in operator.type("check", recording, status=1)
        assert "1 packages of Dynamo: 1 published" in operator.type("run", recording)
        assert "1 packages of Dynamo: 1 stored" in operator.type("check", recording)
        assert operator.json("run", recording)["packages"][0]["standing"] == "stored"
        with grpc.insecure_channel(operator.address) as channel:
            (found,) = PackageServiceStub(channel).Find(FindRequest(key=package.key))
    assert (found.package.content, found.package.signature) == (b"content", signature)
    with operating(capsys) as operator:
        said = operator.type("run", recording, status=1)
        assert "the package of Model.forward, is not kept, no_caches: this farm keeps no packages" in said
        assert "3 of 3 graphs are served" in said


def test_for_another_mode(operator: Operator, recording: Path) -> None:
    operator.type("run", recording)
    report = operator.json("run", recording, "--mode", "slow")
    assert report["totals"]["compiled"] == 3
    said = operator.pool.assignments[-1].job.options.inductor
    assert [(option.name, option.value.boolean) for option in said] == [("max_autotune", True)]
    assert operator.json("plan", recording, "--mode", "quick")["graphs"][0]["reason"] == "unknown_mode"


def test_tensors_are_sent_and_their_lack_is_named(operator: Operator, tmp_path: Path) -> None:
    job = sample_job(constants=[digest_of(b"tensor")])
    without = record(tmp_path / "without", job, tensors=False, blobs=[b"tensor"])
    assert operator.json("plan", without)["graphs"][0]["reason"] == "missing_tensors"
    with_tensors = record(tmp_path / "with", job, blobs=[b"tensor"])
    assert operator.json("run", with_tensors)["totals"]["compiled"] == 1
    assert operator.pool.assignments[0].blobs == {digest_of(b"tensor"): b"tensor"}
    # The farm has them now.
    assert operator.json("plan", without)["graphs"][0]["standing"] == "hit"


async def fail_sine(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
    if assignment.job.graph.nodes[1].call.target == "torch.sin":
        return FAILURE
    return await compile_at_once(assignment, worker, on_phase)


def test_failed_compiles_are_told_and_cost_the_exit_status(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    with operating(capsys, script=fail_sine) as operator:
        said = operator.type("run", recording, status=1)
        assert "2 of 3 graphs are served: 2 compiled" in said
        assert "failed, timeout: the compile took longer than 1 s" in said
        assert operator.json("check", recording, status=1)["stored"] == 2


def test_a_full_queue_means_waiting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [f"torch.graph_{number}" for number in range(12)]
    recording = record(tmp_path / "recording", *map(sample_job, names))
    config = GatewayConfig(listen="127.0.0.1:0", max_queued_jobs=1, max_queued_jobs_of_tenant=1)
    with operating(capsys, config=config) as operator:
        # From then on the farm knows how soon there is room.
        operator.json("run", record(tmp_path / "first", sample_job()))
        assert operator.json("run", recording, "--parallel", "8")["totals"]["compiled"] == 12


def test_a_plan_says_that_an_environment_was_declared_and_not_seen_yet(
    capsys: pytest.CaptureFixture[str], recording: Path
) -> None:
    pool, late = ScriptedPool(environments=[]), DeclaredEnvironment(name="late", device="cpu", python="python")
    with serving_in_thread(pool=pool, declared=[late]) as address:
        said = Operator(address, pool, capsys).type("plan", recording)
    assert "3 would wait for a worker of the environment late: it is declared, not seen yet" in said
    assert "cannot be served" not in said


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C counts, as in a terminal; a shell has what it runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ended_in_the_middle_and_run_again(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    async def script(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact | CompileFailure:
        if assignment.job.graph.nodes[1].call.target == "torch.cos" and not go_on.is_set():
            started.set()
            raise_interrupt.start()
            # Else all may be done before the command hears of it.
            await asyncio.to_thread(go_on.wait)
        return await compile_at_once(assignment, worker, on_phase)

    raise_interrupt = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT))
    with interruptible(), operating(capsys, script=script) as operator:
        try:
            assert "run it again to go on" in operator.type("run", recording, "--parallel", "1", status=130)
            raise_interrupt.join()
        finally:
            # The farm ends when its scripts have.
            go_on.set()
        assert started.is_set()
        report = operator.json("run", recording)
        assert report["totals"]["failed"] == 0
        assert operator.json("check", recording)["stored"] == 3
        # What was done before is not done again.
        assert len(operator.pool.assignments) == 3


def test_bad_recordings_and_arguments_are_wrong_questions(operator: Operator, recording: Path, tmp_path: Path) -> None:
    assert f"there is no {tmp_path}/nothing/recording.json" in operator.type("plan", tmp_path / "nothing", status=2)
    (recording / MANIFEST).write_text((recording / MANIFEST).read_text()[:100])
    assert "recording.json is cut short" in operator.type("run", recording, status=2)
    with pytest.raises(SystemExit, match="2"):
        main(["prewarm", "check", str(recording), "--threshold", "101"])


def test_a_farm_that_is_not_there_is_said(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prewarm", "run", str(recording), "--address", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
