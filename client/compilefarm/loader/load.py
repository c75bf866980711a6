"""Loads an artifact: makes a callable of a manifest and its blobs, in pods and in verifications."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from compilefarm.core.artifacts import ARTIFACT_FORMAT, blobs_to_run
from compilefarm.core.environments import differences
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact, UnusableFolder
from compilefarm.core.interruptions import raise_interruption
from compilefarm.loader.blobs import unpack
from compilefarm.loader.kernels import offering_kernels
from compilefarm.loader.libraries import BuiltLibrary, LibraryNotPacked, using_libraries
from compilefarm.loader.programs import deserialize_program, preload_loader
from compilefarm.loader.triton_builds import TritonLibrary, offer_libraries
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.manifest_pb2 import BUILDER_INDUCTOR, BUILDER_KERNEL, BUILDER_TRITON, Manifest

Program = Callable[..., Any]


def preload() -> None:
    """Imports what loading needs: seconds of work that need not wait for an answer."""
    preload_loader(with_triton=torch.cuda.is_initialized())


def check_fits(manifest: Manifest, environment: Environment) -> None:
    """Checks that an artifact can run here. To be called before its blobs are fetched, and before it is loaded.

    Args:
        manifest: the artifact.
        environment: this machine, with the parts that the graph needs.

    Raises:
        IncompatibleArtifact: it cannot; the message names what differs.
    """
    if manifest.format != ARTIFACT_FORMAT:
        raise IncompatibleArtifact(
            f"the artifact has format {manifest.format}, this release reads {ARTIFACT_FORMAT}: upgrade the older end"
        )
    found = differences(wanted=environment, offered=manifest.environment)
    if found:
        raise IncompatibleArtifact(f"the artifact was made elsewhere: {'; '.join(found)}")


def load_artifact(
    manifest: Manifest,
    *,
    blobs: Mapping[str, bytes],
    cuda_device: int = 0,
    process_groups: Sequence[str] = (),
    recording: Mapping[str, object] | None = None,
    on_unrecorded: Callable[[Exception], None] | None = None,
) -> Program:
    """Loads an artifact: unpickles its program and maps its libraries. Compiles nothing and starts no process.

    Args:
        manifest: the artifact; it has passed `check_fits`.
        blobs: stored bytes by digest, all that the program needs.
        cuda_device: the GPU that it is to run on, where it runs on one.
        process_groups: what this process calls each group that it communicates in.
        recording: Inductor's settings if the program is to be recorded as CUDA graphs.
        on_unrecorded: told why it cannot be, once, and then it runs without graphs; None: calls end with the error.

    Returns:
        The program, to be called with the graph's inputs in order; it returns what the graph returns, as a list.

    Raises:
        CorruptArtifact: a blob is missing, holds other bytes than its digest says, or does not make a program.
        UnusableFolder: temporary files cannot be written, or no libraries be loaded from there.
    """
    # Before anything else imports part of it, and more than it needs.
    preload_loader(with_triton=False)
    contents = {blob.digest: unpack(blob, _stored(blobs, blob.digest)) for blob in blobs_to_run(manifest)}
    _offer_triton_libraries(manifest, contents)
    kernels = {
        each.source_digest: contents[each.blob.digest] for each in manifest.libraries if each.builder == BUILDER_KERNEL
    }
    try:
        with tempfile.TemporaryDirectory(prefix="compilefarm-") as folder:
            libraries = _written_libraries(manifest, contents, folder=Path(folder))
            # The files may go once the libraries are mapped.
            with using_libraries(libraries), offering_kernels(kernels):
                return deserialize_program(
                    contents[manifest.program.digest],
                    cuda_device=cuda_device,
                    process_groups=process_groups,
                    recording=recording,
                    on_unrecorded=on_unrecorded,
                )
    except LibraryNotPacked as error:
        raise CorruptArtifact(str(error)) from error
    except OSError as error:
        raise_interruption(error)
        raise _of_files(error) from error
    except Exception as error:
        raise_interruption(error)
        raise CorruptArtifact(f"the artifact cannot be loaded: {type(error).__name__}: {error}") from error


def _of_files(error: OSError) -> UnusableFolder | CorruptArtifact:
    """Whether it is the folder or the artifact: where a library cannot be mapped, Python says no number."""
    if error.errno is None and not _forbids_libraries():
        return CorruptArtifact(f"a library of the artifact cannot be loaded: {error}")
    return UnusableFolder(
        f"an artifact cannot be loaded by way of temporary files: {error}; set TMPDIR to a folder with room that is not"
        " mounted noexec"
    )


def _forbids_libraries() -> bool:
    return bool(os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC)


def _written_libraries(manifest: Manifest, contents: Mapping[str, bytes], *, folder: Path) -> dict[str, BuiltLibrary]:
    libraries = {}
    for library in manifest.libraries:
        if library.builder == BUILDER_INDUCTOR:
            # Named by digest: a name that a manifest brings along never becomes a path.
            path = folder / f"{library.blob.digest}.so"
            path.write_bytes(contents[library.blob.digest])
            libraries[library.source_digest] = BuiltLibrary(
                source_digest=library.source_digest, name=library.name, path=str(path)
            )
    return libraries


def _offer_triton_libraries(manifest: Manifest, contents: Mapping[str, bytes]) -> None:
    libraries = {
        library.source_digest: TritonLibrary(
            source_digest=library.source_digest, name=library.name, content=contents[library.blob.digest]
        )
        for library in manifest.libraries
        if library.builder == BUILDER_TRITON
    }
    if libraries:
        offer_libraries(libraries)


def _stored(blobs: Mapping[str, bytes], digest: str) -> bytes:
    stored = blobs.get(digest)
    if stored is None:
        raise CorruptArtifact(f"blob {digest} of the artifact is missing")
    return stored
