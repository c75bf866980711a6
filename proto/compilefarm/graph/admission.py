"""Admission of requests to decoding: what a process may run of them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from compilefarm.core.digests import digest_of
from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.v1.graph_pb2 import TritonKernel
from compilefarm.v1.job_pb2 import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What requests may hold beside operators of torch.

    Attributes:
        operators: names of the operators of other libraries that graphs may call.
        triton_kernels: whether graphs may bring Triton kernels of the user's own. Their source is run.
        libraries: names of the distributions that are imported for graphs that call their operators.
    """

    operators: Set[str] = frozenset()
    libraries: Set[str] = frozenset()
    triton_kernels: bool = False


def with_libraries_of(job: Job, *, admitted: Admitted) -> Admitted:
    """Imports the libraries that a job needs, and admits those of their operators that it describes.

    Raises:
        InvalidRequest: a library is not admitted, or is not here as the request says it.
    """
    wanted = [operator for operator in job.environment.operators if operator.name not in admitted.operators]
    if not wanted:
        return admitted
    # Most jobs need none, and a process that imports no library looks at no installed files.
    from compilefarm.graph.libraries import import_libraries_of

    imported = import_libraries_of(wanted, graph=job.graph, known=admitted.operators, libraries=admitted.libraries)
    return replace(admitted, operators=admitted.operators | imported)


def decode(job: Job, *, blobs: Mapping[str, bytes], admitted: Admitted) -> DecodedJob:
    """As `decode_job`, with the Triton kernels of the request where these are admitted."""
    kernels = []
    if job.graph.kernels and admitted.triton_kernels:
        # Triton takes a second to import, and most jobs have no such kernels.
        from compilefarm.graph.triton_modules import build_kernels

        kernels = build_kernels(job.graph.kernels, folder=folder_for(job.graph.kernels))
    return decode_job(job, blobs=blobs, operators=admitted.operators, kernels=kernels)


def folder_for(kernels: Sequence[TritonKernel]) -> Path:
    """A folder for the source of kernels, the same for the same ones. Torch reads files there whenever it comes to
    them; they go when this process ends."""
    content = b"".join(kernel.SerializeToString(deterministic=True) for kernel in kernels)
    folder = _folder_of_process(os.getpid()) / digest_of(content)
    folder.mkdir(exist_ok=True)
    return folder


@cache
def _folder_of_process(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="compilefarm-kernels-"))
    atexit.register(_remove, folder, process=process)
    return folder


def _remove(folder: Path, *, process: int) -> None:
    # A forked process has its parent's list of what to do at the end.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
