"""What encoding a graph makes, and what it asks of the machine; apart from the encoder, which many need not import."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import torch

from compilefarm.v1.job_pb2 import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentNeeds:
    """Which facts of the machine decide whether a result runs on it.

    Attributes:
        cpu: the graph computes on the CPU.
        cuda_device: physical index of the GPU that it computes on; None if on none.
        operators: names of the operators of other libraries than torch that it calls.
        triton_kernels: whether it launches Triton kernels of the user's own.
        libraries: names of the libraries beside torch that rewrite the graph while it is compiled.
    """

    cpu: bool
    cuda_device: int | None
    operators: Set[str] = frozenset()
    libraries: Set[str] = frozenset()
    triton_kernels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedJob:
    """A job and what belongs to it.

    Attributes:
        job: the request.
        blobs: bytes of the tensors that the graph holds, by digest.
        cuda_devices: physical index of each CUDA device number in the request.
        symbols: torch's value of each symbol of the job.
        held: tensors that the graph holds and that are inputs of the job, after those of the graph.
        messages: what the assertions of the graph say, by the number that is sent in the place of each.
        process_groups: what this process calls each group that the graph communicates in.
        recording: Inductor's settings while the program is loaded that this process records as CUDA graphs; empty if it
            does not.
    """

    job: Job
    blobs: Mapping[str, bytes]
    cuda_devices: tuple[int, ...]
    symbols: tuple[torch.SymInt, ...]
    held: tuple[torch.Tensor, ...]
    messages: tuple[str, ...] = ()
    process_groups: tuple[str, ...] = ()
    recording: Mapping[str, object] = field(default_factory=dict)
