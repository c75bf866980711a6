"""Checks of programs that stand in for an artifact, in the process of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.testing import capture
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.verify import compare, first_run

Program = Callable[..., Any]


def encoded_of(
    model: Callable[..., Any], *inputs: Any, trains: bool = False, options: Mapping[str, object] | None = None
) -> EncodedJob:
    """A model as a job; `options` are for torch.compile."""
    with torch.set_grad_enabled(trains):
        return capture(model, *inputs).encode(options=options)


def checked(encoded: EncodedJob, program_of: Callable[[GraphModule], Program]) -> Verification:
    """What a check says of a program that is made of the graph.

    Raises:
        VerificationFailed: it does not do what the graph does.
    """
    figures, task = Verification(), VerifyTask(job=encoded.job)
    with apply_ambient(encoded.job.ambient):
        eager, theirs = first_run(decode(encoded.job, blobs=encoded.blobs, admitted=Admitted()), encoded.job)
        program = program_of(decode(encoded.job, blobs=encoded.blobs, admitted=Admitted()).graph_module)
        compare(task, eager.run(program), theirs, program, eager, figures)
    return figures
