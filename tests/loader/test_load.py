from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from compilefarm.builder.packing import pack
from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact, UnusableFolder
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.loader import load
from compilefarm.loader.environment import describe_environment
from compilefarm.loader.load import check_fits, load_artifact
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


def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, stored = pack(b"a program")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(UnusableFolder, match=r"not there.*set TMPDIR"):
        load_artifact(Manifest(program=blob), blobs={blob.digest: stored})


@pytest.mark.parametrize(
    ("error", "flags", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 0, UnusableFolder),
        (OSError("failed to map segment from shared object"), os.ST_NOEXEC, UnusableFolder),
        (OSError("undefined symbol: _ZN2at"), 0, CorruptArtifact),
    ],
    ids=["full", "noexec", "not of this machine"],
)
def test_a_folder_is_told_from_an_artifact(
    error: OSError, flags: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    blob, stored = pack(b"a program")
    monkeypatch.setattr(load, "deserialize_program", fail)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    with pytest.raises(kind, match=str(error.args[-1])):
        load_artifact(Manifest(program=blob), blobs={blob.digest: stored})
