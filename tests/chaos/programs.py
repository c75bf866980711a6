"""Graphs of pods without torch: what they ask for, and what the right answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compilefarm.client.options import Options
from compilefarm.client.runtime import Encoded
from compilefarm.client.testing import FakeRuntime
from compilefarm.core.keys import key_of
from compilefarm.service.testing import sample_job
from compilefarm.v1.job_pb2 import Job
from compilefarm.worker.testing import ENVIRONMENT, program_of

# Some artifacts take several messages, most take one.
SIZE_BYTES = 24 * 1024


def job_of(name: str) -> Job:
    """What a pod asks for: another job for every name."""
    return sample_job(f"torch.{name}", environment=ENVIRONMENT)


def key(name: str) -> str:
    """Under which it is stored."""
    return key_of(job_of(name)).text


def right_program(name: str, *, size_bytes: int = SIZE_BYTES) -> bytes:
    """What a scripted child makes of it."""
    return program_of(job_of(name), size_bytes=size_bytes)


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    job: Job
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    symbols: Sequence[Any] = ()
    held: Sequence[Any] = ()
    cuda_devices: Sequence[int] = ()
    recording: Mapping[str, object] = field(default_factory=dict)
    messages: Sequence[str] = ()
    process_groups: Sequence[str] = ()


class ScriptedRuntime(FakeRuntime):
    """As FakeRuntime, for farms with scripted children: graphs become the jobs that those understand."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = ENVIRONMENT

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        return _Encoded(job=job_of(graph_module.name))
