"""What an artifact of a real compile consists of, and what comes of it where something is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch

from compilefarm.client import Farm, stats
from compilefarm.core.artifacts import blobs_to_run
from compilefarm.core.errors import CorruptArtifact
from compilefarm.graph.admission import Admitted
from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import capture
from compilefarm.loader.environment import describe_environment
from compilefarm.loader.load import load_artifact
from compilefarm.v1.blob_service_pb2 import ReadRequest
from compilefarm.v1.blob_service_pb2_grpc import BlobServiceStub
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.compile_service_pb2 import CompileRequest
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.worker import verify

from .models import mlp
from .serving import ServedFarm

pytestmark = pytest.mark.compiles


@dataclass(frozen=True, kw_only=True)
class Served:
    """An artifact of the farm, and the job that it is for."""

    job: Job
    manifest: Manifest
    blobs: dict[str, bytes]


@pytest.fixture(scope="module")
def served(farm: ServedFarm) -> Served:
    model, inputs = mlp(width=28)
    with torch.no_grad():
        captured = capture(model, *inputs)
        given = captured.example_inputs
        job = encode_job(captured.graph_module, given, options={}, environment=describe_environment).job
    with grpc.insecure_channel(farm.address) as channel:
        *_, last = CompileServiceStub(channel).Compile(CompileRequest(job=job))
        manifest = last.finished.manifest
        reading = BlobServiceStub(channel)
        blobs = {
            digest: b"".join(piece.chunk for piece in reading.Read(ReadRequest(digest=digest)))
            for digest in {blob.digest for blob in blobs_to_run(manifest)}
        }
    return Served(job=job, manifest=manifest, blobs=blobs)


def test_a_hit_fetches_what_runs_and_nothing_for_people(farm: ServedFarm, served: Served) -> None:
    model, inputs = mlp(width=28)
    with torch.no_grad():
        torch.compile(model, backend=Farm(farm.address).backend)(*inputs)
    record = stats()[-1]
    assert (record.key, record.outcome) == (served.manifest.key, "hit")
    assert served.manifest.sources.digest not in served.blobs
    assert served.manifest.sources.size_bytes > 0
    assert record.bytes_fetched == sum(map(len, served.blobs.values()))


def test_what_an_artifact_was_made_of_can_be_read(farm: ServedFarm, served: Served, tmp_path: Path) -> None:
    said = farm.ask("inspect", served.manifest.key, "--source", str(tmp_path / "sources"))
    assert served.manifest.key in said
    written = {path.relative_to(tmp_path / "sources").as_posix() for path in tmp_path.rglob("*.*")}
    assert {"forward/wrapper.py", "forward/inductor_post_grad_graph.txt"} <= written
    wrapper = (tmp_path / "sources" / "forward" / "wrapper.py").read_text()
    compile(wrapper, "wrapper.py", "exec")
    # As Inductor wrote it: what runs has no comments.
    assert "cpp_fused" in wrapper
    assert "# Topologically Sorted Source Nodes" in wrapper


@pytest.fixture
def without_its_libraries(served: Served) -> Manifest:
    manifest = Manifest()
    manifest.CopyFrom(served.manifest)
    assert manifest.libraries
    del manifest.libraries[:]
    return manifest


def test_an_artifact_that_lacks_a_library_is_refused_and_nothing_is_built(
    served: Served, without_its_libraries: Manifest
) -> None:
    with pytest.raises(CorruptArtifact, match=r"the artifact holds no library for source [0-9a-f]{64}"):
        load_artifact(without_its_libraries, blobs=served.blobs)
    assert callable(load_artifact(served.manifest, blobs=served.blobs))


def test_the_check_refuses_an_artifact_that_would_need_a_compiler(
    served: Served, without_its_libraries: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The verifier takes compilers out of its process for good.
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, "")
    task = VerifyTask(job=served.job, manifest=without_its_libraries)
    for digest, content in served.blobs.items():
        task.blobs.add(digest=digest, content=content)
    with pytest.raises(CorruptArtifact, match="holds no library"):
        verify.verify_task(task, admitted=Admitted())
    task.manifest.CopyFrom(served.manifest)
    assert verify.verify_task(task, admitted=Admitted()).subprocesses == 0
