"""Writes artifacts in torch's own forms, for machines without Compilefarm (torch._inductor.CompiledArtifact.load).

A program is put back into what torch expects: its wrapper brings the libraries of its C++ kernels along. Kernels of
Triton are compiled where the program is loaded, from their source: what launches finished ones is ours.
"""

from __future__ import annotations

import base64
import inspect
import pickle
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from compilefarm.core.artifacts import blobs_to_run
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact
from compilefarm.core.interruptions import raise_interruption
from compilefarm.loader.blobs import unpack
from compilefarm.loader.sources import read_sources
from compilefarm.loader.wrappers import names_process_groups
from compilefarm.torch_internals import embedded_libraries
from compilefarm.torch_internals.compiled_artifacts import write_binary, write_unpacked
from compilefarm.torch_internals.compiled_graphs import replace_wrapper
from compilefarm.v1.manifest_pb2 import BUILDER_INDUCTOR, BUILDER_KERNEL, Manifest

Format = Literal["binary", "unpacked"]


def write_export(manifest: Manifest, *, blobs: Mapping[str, bytes], path: Path, format: Format) -> None:
    """Writes an artifact in a form of torch's. Unpickles its program, so it has to be trusted by now.

    Args:
        manifest: the artifact; this torch has made it.
        blobs: stored bytes by digest, all that it has.
        path: a file for "binary", a folder that is empty or not there for "unpacked".
        format: "binary" is one file with finished libraries; "unpacked" is a folder whose sources can be read and
            changed, and whose C++ is compiled where it is loaded.

    Raises:
        IncompatibleArtifact: torch has no such form of it; the message says why.
        CorruptArtifact: it makes no program.
        OSError: it cannot be written.
    """
    if manifest.guards:
        raise IncompatibleArtifact("the artifact has guards on its sizes, which torch's form does not hold")
    contents = {blob.digest: unpack(blob, blobs[blob.digest]) for blob in blobs_to_run(manifest)}
    entry = _program_of(contents[manifest.program.digest])
    has_kernels = any(library.builder == BUILDER_KERNEL for library in manifest.libraries)
    if format == "unpacked" or has_kernels:
        _restore_wrappers(entry, _sources_of(manifest, blobs))
    for graph in _graphs_of(entry):
        _require_sayable(graph.source_code)
        text = _readable(graph, manifest) if format == "unpacked" else _complete(graph, manifest, contents=contents)
        replace_wrapper(graph, text)
    if format == "unpacked":
        write_unpacked(entry, key=manifest.key, folder=path)
    else:
        write_binary(entry, path=path)


def _program_of(content: bytes) -> Any:
    try:
        entry, *_ = pickle.loads(content)  # noqa: S301 - part of an artifact
    except Exception as error:
        raise_interruption(error)
        raise CorruptArtifact(f"the artifact cannot be loaded: {type(error).__name__}: {error}") from error
    return entry


def _graphs_of(entry: Any) -> Iterator[Any]:
    yield from (part.result for part in (entry.compiled_fw, entry.compiled_bw) if part is not None)


def _sources_of(manifest: Manifest, blobs: Mapping[str, bytes]) -> dict[str, str]:
    if not manifest.HasField("sources"):
        raise IncompatibleArtifact("the artifact was stored without its sources, of which this form consists")
    sources = read_sources(manifest.sources, blobs[manifest.sources.digest])
    return {file.path: file.text for file in sources.files}


def _restore_wrappers(entry: Any, sources: Mapping[str, str]) -> None:
    """Puts wrappers back into what Inductor has written."""
    for name, part in (("forward", entry.compiled_fw), ("backward", entry.compiled_bw)):
        if part is not None:
            path = f"{name}/wrapper.py"
            if path not in sources:
                raise CorruptArtifact(f"among the sources of the artifact there is no {path}")
            replace_wrapper(part.result, sources[path])


def _require_sayable(wrapper: str) -> None:
    if names_process_groups(wrapper):
        raise IncompatibleArtifact("the artifact communicates in groups of processes, which have names in each process")


def _readable(graph: Any, manifest: Manifest) -> str:
    return "\n".join([*_preamble(manifest, is_exact=True), str(graph.source_code)])


def _complete(graph: Any, manifest: Manifest, *, contents: Mapping[str, bytes]) -> str:
    libraries = {
        library.source_digest: (
            library.name,
            base64.b64encode(zlib.compress(contents[library.blob.digest])).decode(),
        )
        for library in manifest.libraries
        if library.builder == BUILDER_INDUCTOR
    }
    begin = f"_end_of_builds = answer_builds({libraries!r})"
    return "\n".join([*_preamble(manifest, is_exact=False), begin, str(graph.source_code), "_end_of_builds()", ""])


def _preamble(manifest: Manifest, *, is_exact: bool) -> list[str]:
    there = manifest.environment
    if not there.HasField("cpu"):
        # It has no C++, or none that decides what is computed.
        return [inspect.getsource(embedded_libraries)]
    needed = (
        f"require_machine(python_abi={there.python_abi!r}, architecture={there.cpu.architecture!r}, "
        f"instruction_sets={[*there.cpu.instruction_sets]!r}, is_exact={is_exact})"
    )
    return [inspect.getsource(embedded_libraries), needed]
