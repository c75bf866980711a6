"""`compilefarm explain` as a user types it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from compilefarm.cli.listing import code_of
from compilefarm.cli.main import main
from compilefarm.core.digests import digest_of
from compilefarm.core.keys import PART_NAMES, key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.core.requests import Request, write_request
from compilefarm.service.testing.jobs import sample_job
from compilefarm.service.testing.pool import ScriptedPool, artifact_of
from compilefarm.service.testing.servers import serving_in_thread
from compilefarm.v1.compile_service_pb2 import CompileRequest
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import Job

from .requests import TENSOR, small_job

Capture = pytest.CaptureFixture[str]


def _save(path: Path, job: Job, *, tensors: bool = True) -> str:
    write_request(Request(job=job, blobs={digest_of(TENSOR): TENSOR} if tensors else {}), path=path)
    return str(path)


def _explain(*arguments: str, capsys: Capture) -> list[str]:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def _explain_json(*arguments: str, capsys: Capture) -> dict[str, Any]:
    data: dict[str, Any] = json.loads("\n".join(_explain(*arguments, "--json", capsys=capsys)))
    return data


def _refusal(*arguments: str, capsys: Capture) -> str:
    assert main(["explain", *arguments]) == 1
    said = capsys.readouterr()
    assert not said.out
    return said.err


async def _compile(assignment: Assignment, _: str, __: object) -> Artifact:
    made = artifact_of(assignment)
    made.manifest.environment.CopyFrom(assignment.job.environment)
    return made


@pytest.fixture
def served() -> Iterator[tuple[str, Job]]:
    """Address of a farm, and a job that it has compiled."""
    job = sample_job()
    with serving_in_thread(pool=ScriptedPool(_compile)) as address, grpc.insecure_channel(address) as channel:
        list(CompileServiceStub(channel).Compile(CompileRequest(job=job)))
        yield address, job


def test_a_request(tmp_path: Path, capsys: Capture) -> None:
    lines = _explain(_save(tmp_path / "graph.cfreq", small_job()), capsys=capsys)
    key = key_of(small_job())
    assert lines[0] == f"key {key.text}"
    assert [line.split() for line in lines[1 : 1 + len(PART_NAMES)]] == [[part.name, part.digest] for part in key.parts]
    assert "  the graph holds 1, which the file has" in lines
    for fact in (
        "  inductor.max_autotune: True",
        "  grad_enabled: True",
        "  backends.cudnn.allow_tf32: False",
        "  torch: 2.15.0+cpu",
        "  cpu.instruction_sets: avx2, fma",
    ):
        assert fact in lines
    code = list(code_of(small_job()))
    assert lines[-len(code) :] == code


def test_a_request_without_its_tensors_and_options(tmp_path: Path, capsys: Capture) -> None:
    job = small_job()
    job.ClearField("options")
    lines = _explain(_save(tmp_path / "graph.cfreq", job, tensors=False), capsys=capsys)
    assert "  the graph holds 1, which the file leaves out" in lines
    assert lines[lines.index("options") + 1] == "  nothing that differs from torch's defaults"


def test_two_requests(tmp_path: Path, capsys: Capture) -> None:
    other = small_job()
    other.options.ClearField("inductor")
    other.inputs[0].tensor.dtype = "float64"
    first, second = _save(tmp_path / "a.cfreq", small_job()), _save(tmp_path / "b.cfreq", other)
    assert _explain(first, second, capsys=capsys) == [
        f"first  {key_of(small_job()).text}  {first}",
        f"second {key_of(other).text}  {second}",
        "inputs differs, first / second:",
        "  inputs[0]: float32[2, 4], stride (4, 1), cpu / float64[2, 4], stride (4, 1), cpu",
        "options differs, first / second:",
        "  options.inductor.max_autotune: True / not set",
    ]
    assert _explain(first, first, capsys=capsys)[2:] == ["the same key: one artifact answers both"]


def test_json(tmp_path: Path, capsys: Capture) -> None:
    other = small_job()
    other.ambient.grad_enabled = False
    first, second = _save(tmp_path / "a.cfreq", small_job(), tensors=False), _save(tmp_path / "b.cfreq", other)
    one = _explain_json(first, capsys=capsys)
    assert one["key"] == key_of(small_job()).text
    assert list(one["key_parts"]) == list(PART_NAMES)
    assert one["missing_tensors"] == [digest_of(TENSOR)]
    assert one["code"] == list(code_of(small_job()))
    assert one["job"]["environment"]["torch"] == "2.15.0+cpu"
    two = _explain_json(first, second, capsys=capsys)
    assert two["second"] == {"name": second, "key": key_of(other).text}
    assert two["differences"] == {"ambient": ["ambient.grad_enabled: True / False"]}


def test_a_stored_key(served: tuple[str, Job], capsys: Capture) -> None:
    address, job = served
    key = key_of(job)
    for text in (key.text, key.text[:8]):
        lines = _explain(text, "--address", address, capsys=capsys)
        assert lines[0] == f"key {key.text}"
        assert [line.split()[1] for line in lines[1 : 1 + len(PART_NAMES)]] == [part.digest for part in key.parts]
        assert lines[1 + len(PART_NAMES)].startswith("made for torch 2.15.0+cpu")
    data = _explain_json(key.text, "--address", address, capsys=capsys)
    assert data["key_parts"] == {part.name: part.digest for part in key.parts}
    assert data["environment"]["torch"] == "2.15.0+cpu"


def test_a_stored_key_and_a_request(served: tuple[str, Job], tmp_path: Path, capsys: Capture) -> None:
    address, job = served
    same = _save(tmp_path / "same.cfreq", job)
    assert _explain(same, key_of(job).text, "--address", address, capsys=capsys)[-1].startswith("the same key")
    other = Job()
    other.CopyFrom(job)
    other.ambient.grad_enabled = True
    lines = _explain(_save(tmp_path / "other.cfreq", other), key_of(job).text, "--address", address, capsys=capsys)
    assert lines[2:] == [
        "ambient differs, first / second:",
        "  a farm keeps no requests: what a part of the key says is known of saved requests alone",
    ]


def test_a_key_that_is_not_stored(served: tuple[str, Job], capsys: Capture) -> None:
    assert "nothing is stored under 0123456" in _refusal("0123456", "--address", served[0], capsys=capsys)


def test_what_is_neither_file_nor_key(tmp_path: Path, capsys: Capture) -> None:
    assert "there is no file graph.cfreq" in _refusal("graph.cfreq", capsys=capsys)
    assert "Is a directory" in _refusal(str(tmp_path), capsys=capsys)
    path = tmp_path / "notes.txt"
    path.write_text("no request")
    assert f"{path}: this is no request file" in _refusal(str(path), capsys=capsys)


def test_a_file_that_is_named_like_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    _save(tmp_path / "0123456", small_job())
    monkeypatch.chdir(tmp_path)
    assert _explain("0123456", capsys=capsys)[0] == f"key {key_of(small_job()).text}"


def test_a_request_of_a_later_release_is_shown_without_a_key(tmp_path: Path, capsys: Capture) -> None:
    # Field 1000 is one that no release has.
    newer = Job.FromString(small_job().SerializeToString() + b"\xc2\x3e\x01x")
    path = _save(tmp_path / "newer.cfreq", newer)
    lines = _explain(path, capsys=capsys)
    assert lines[0].startswith("key none: the request holds fields that this service does not know")
    assert lines[-1] == "    return (node_7,)"
    assert "newer.cfreq has no key" in _refusal(path, path, capsys=capsys)


def test_looking_at_a_file_needs_neither_torch_nor_a_name_that_it_holds(tmp_path: Path) -> None:
    job = small_job()
    # Imported by nobody; importing one of them has visible consequences.
    job.graph.nodes[3].call.target = "antigravity.fly"
    job.inputs[0].tensor.dtype = "this.s"
    script = (
        "import sys; from compilefarm.cli.main import main; code = main(sys.argv[1:]);"
        " print(code, sorted({'torch', 'numpy', 'antigravity', 'this'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, "explain", _save(tmp_path / "graph.cfreq", job)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "node_3 = Call(kind=1, target='antigravity.fly')(input_0, input_1)" in done.stdout


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    job = small_job()
    job.graph.nodes.extend(itertools.repeat(job.graph.nodes[4], 5000))
    path = _save(tmp_path / "graph.cfreq", job)
    command = [sys.executable, "-m", "compilefarm.cli.main", "explain", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("key ")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1
