"""The search for intermediate representations finds them; it needs no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from compilefarm.builder.packing import pack
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key

from .contents import find_representations

triton = pytest.importorskip("triton")


@triton.jit
def doubled(x):
    triton.language.store(x, triton.language.load(x) * 2)


def compiled() -> dict[str, str | bytes]:
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    source = triton.compiler.ASTSource(doubled, {"x": "*fp32"}, {})
    steps: dict[str, str | bytes] = triton.compile(source, target=target, options={"enable_fp_fusion": True}).asm
    return steps


async def test_each_representation_is_found_and_machine_code_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    # As in children of a worker: machine code with line numbers brings PTX along.
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    steps = compiled()
    store = await open_store(str(tmp_path / "store"))
    for kind in ("ttir", "ttgir", "llir", "ptx", "cubin"):
        content = steps[kind]
        blob, stored = pack(content if isinstance(content, bytes) else content.encode())
        artifact = sample_artifact(sample_key(kind))
        artifact.manifest.program.CopyFrom(blob)
        for library in artifact.manifest.libraries:
            library.blob.CopyFrom(blob)
        await store.put_artifact(artifact.manifest, blobs={**artifact.blobs, blob.digest: stored})
    found = await find_representations(tmp_path / "store")
    assert {each.partition(":")[0] for each in found} == {
        f"artifact {sample_key(kind)}" for kind in ("ttir", "ttgir", "llir", "ptx")
    }
