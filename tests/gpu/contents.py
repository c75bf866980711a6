"""What artifacts of a store hold: winners alone, as machine code, and nothing of the way there."""

from __future__ import annotations

from pathlib import Path

from compilefarm.core.artifacts import blobs_to_run
from compilefarm.loader.blobs import unpack
from compilefarm.store.layout import MANIFESTS
from compilefarm.store.opening import open_store

# What no text of these kinds does without, and no machine code, wrapper or pickle of a kernel has.
_REPRESENTATIONS = {
    "Triton's representation": b"tt.func public",
    "LLVM's representation": b"target datalayout",
    "PTX": b".visible .entry",
}


async def find_representations(folder: Path) -> list[str]:
    """In words, each blob that pods fetch although it holds an intermediate representation.

    Args:
        folder: of the store; of a key with several variants, one is looked at.
    """
    store = await open_store(str(folder))
    graphs = sorted(graph.name for graph in (folder / MANIFESTS).glob("*"))
    found = []
    for key in [key for graph in graphs for key in await store.find_by_prefix(graph)]:
        manifest = await store.find_manifest(key)
        assert manifest is not None
        for blob in blobs_to_run(manifest):
            content = unpack(blob, await store.get_blob(blob.digest))
            held = [name for name, marker in _REPRESENTATIONS.items() if marker in content]
            if held:
                found.append(f"artifact {key}: blob {blob.digest} holds {', '.join(held)}")
    return found
