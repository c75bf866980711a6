from __future__ import annotations

from collections.abc import Callable

import pytest

from compilefarm.artifact.blobs import pack
from compilefarm.artifact.environment import describe_environment
from compilefarm.artifact.load import check_fits, load_artifact
from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact
from compilefarm.graph.encode import EnvironmentNeeds
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.manifest_pb2 import Manifest

HERE = describe_environment(EnvironmentNeeds(cpu=True, cuda_device=None))


def test_only_what_is_needed_is_described() -> None:
    assert not HERE.HasField("cuda")
    assert list(HERE.cpu.instruction_sets) == sorted(HERE.cpu.instruction_sets)
    assert not describe_environment(EnvironmentNeeds(cpu=False, cuda_device=None)).HasField("cpu")


def made_in(change: Callable[[Environment], object]) -> Manifest:
    manifest = Manifest(format=ARTIFACT_FORMAT, environment=HERE)
    change(manifest.environment)
    return manifest


def test_an_artifact_of_this_machine_fits() -> None:
    check_fits(made_in(lambda _: None), HERE)


def test_a_worker_with_fewer_instructions_fits() -> None:
    check_fits(made_in(lambda there: there.cpu.instruction_sets.pop()), HERE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda there: setattr(there, "torch", "9.9.9"), "torch 9.9.9"),
        (lambda there: setattr(there, "torch_build", "feed"), "torch build feed"),
        (lambda there: setattr(there, "python_abi", "cpython-399"), "python cpython-399"),
        (lambda there: there.cpu.instruction_sets.append("avx9"), "lacks avx9"),
        (lambda there: setattr(there.cpu, "architecture", "riscv64"), "processor riscv64"),
        (lambda there: setattr(there.cpu, "glibc", "99.1"), "glibc 99.1"),
    ],
)
def test_what_keeps_an_artifact_from_running_is_named(change: Callable[[Environment], object], words: str) -> None:
    with pytest.raises(IncompatibleArtifact, match=words):
        check_fits(made_in(change), HERE)


def test_another_format_is_named() -> None:
    manifest = made_in(lambda _: None)
    manifest.format = 99
    with pytest.raises(IncompatibleArtifact, match="format 99"):
        check_fits(manifest, HERE)


def test_a_missing_blob_is_named() -> None:
    blob, _ = pack(b"a program")
    with pytest.raises(CorruptArtifact, match=blob.digest):
        load_artifact(Manifest(program=blob), blobs={})


def test_bytes_that_are_no_program_are_refused() -> None:
    blob, stored = pack(b"no pickle at all")
    with pytest.raises(CorruptArtifact, match="cannot be loaded"):
        load_artifact(Manifest(program=blob), blobs={blob.digest: stored})
