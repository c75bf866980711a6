"""Which artifacts have no form of torch's, and that they are refused before anything is written."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compilefarm.builder.packing import pack
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact
from compilefarm.loader.exports import Format, write_export
from compilefarm.loader.sources import MOST_FILES
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.manifest_pb2 import BUILDER_KERNEL, Library, Manifest, SourceFile, Sources


def program_of(wrapper: str) -> bytes:
    graph = SimpleNamespace(source_code=wrapper, cache_key="")
    return pickle.dumps((SimpleNamespace(compiled_fw=SimpleNamespace(result=graph), compiled_bw=None), {}, {}))


def export(
    content: bytes, path: Path, *, format: Format = "binary", sources: bytes | None = None, **fields: Any
) -> None:
    program, stored = pack(content)
    kernel, stored_kernel = pack(b"a kernel")
    told, stored_sources = pack(sources or b"")
    if sources is not None:
        fields["sources"] = told
    libraries = [Library(builder=BUILDER_KERNEL, blob=kernel)] if fields.pop("has_kernels", False) else []
    manifest = Manifest(key="a-key", program=program, libraries=libraries, **fields)
    blobs = {program.digest: stored, kernel.digest: stored_kernel, told.digest: stored_sources}
    write_export(manifest, blobs=blobs, path=path / "program", format=format)


@pytest.mark.parametrize(
    ("wrapper", "given", "words"),
    [
        ("call = None", {"guards": [Expression()]}, "guards on its sizes"),
        ("wait('compilefarm_group_0_of_2')", {}, "groups of processes"),
        ("call = None", {"format": "unpacked"}, "without its sources"),
        ("call = None", {"has_kernels": True}, "without its sources"),
    ],
    ids=["guards", "collectives", "nothing to read", "nothing to compile kernels of"],
)
def test_what_torch_has_no_form_for_is_refused(wrapper: str, given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleArtifact, match=words):
        export(program_of(wrapper), tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_program_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptArtifact, match="cannot be loaded"):
        export(b"no pickle at all", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (b"\xff\xff no message", "cannot be read"),
        (Sources(files=[SourceFile(path="wrapper.py")]).SerializeToString(), "no forward/wrapper.py"),
        # Each takes two bytes, none of them in the store, and 56 in memory: 256 MiB, as many as are read, were 7 GiB.
        (b"\n\0" * (MOST_FILES + 1), f"more than {MOST_FILES} files"),
    ],
    ids=["no sources", "those of another program", "millions of empty ones"],
)
def test_sources_that_no_worker_of_ours_stored_are_refused(sources: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptArtifact, match=words):
        export(program_of("call = None"), tmp_path, format="unpacked", sources=sources)
    assert list(tmp_path.iterdir()) == []
