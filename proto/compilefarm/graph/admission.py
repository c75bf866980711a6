"""What a process decodes, and what of a request it may run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from compilefarm.graph.decode import DecodedJob, decode_job
from compilefarm.v1.job_pb2 import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What requests may hold beside operators of torch.

    Attributes:
        operators: names of the operators of other libraries that graphs may call.
        triton_kernels: whether graphs may bring Triton kernels of the user's own. Their source is run.
    """

    operators: Set[str] = frozenset()
    triton_kernels: bool = False


def decode(job: Job, *, blobs: Mapping[str, bytes], admitted: Admitted) -> DecodedJob:
    """As `decode_job`, with the Triton kernels of the request where these are admitted."""
    kernels = []
    if job.graph.kernels and admitted.triton_kernels:
        # Triton takes a second to import, and most jobs have no such kernels.
        from compilefarm.graph.triton_modules import build_kernels

        # Torch reads the files whenever it comes to them. They go with the folder of a child; a pod keeps them.
        folder = Path(tempfile.mkdtemp(prefix="compilefarm-kernels-"))
        kernels = build_kernels(job.graph.kernels, folder=folder)
    return decode_job(job, blobs=blobs, operators=admitted.operators, kernels=kernels)
