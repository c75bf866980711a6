"""Checks of what Inductor makes of a program, in this process: compiled as a worker does it, and compared."""

from __future__ import annotations

from typing import Any

import torch

from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.compiling import compile_to_program
from compilefarm.graph.encoded_jobs import EncodedJob
from compilefarm.graph.options import config_patches
from compilefarm.torch_internals.index_assertions import keeping_index_assertions
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.operator_guard import guarding_operators
from compilefarm.worker.verify import compare, first_run
from tests.worker.afresh import compiling_afresh
from tests.worker.programs import RightProgram
from tests.worker.verifying import encoded_of


def encoded(program: RightProgram) -> EncodedJob:
    """A program as a job."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(program.precision)
    try:
        return encoded_of(program.model, *program.inputs, trains=program.trains, options=program.options)
    finally:
        torch.set_float32_matmul_precision(before)


def compiled(job: EncodedJob, *, admitted: Admitted | None = None) -> Any:
    """What Inductor makes of a job, in the state that the job asks for: a program that can be called and saved."""
    inductor_options, functorch_options = config_patches(job.job.options)
    decoded = decode(job.job, blobs=job.blobs, admitted=admitted or Admitted())
    with guarding_operators(calls_views=False), keeping_index_assertions(), compiling_afresh():
        return compile_to_program(
            decoded.graph_module,
            decoded.inputs,
            fake_mode=decoded.fake_mode,
            inductor_options=inductor_options,
            functorch_options=functorch_options,
            static_inputs=decoded.static_inputs,
            frozen_inputs=decoded.frozen_inputs,
        )


def checked_compile(job: EncodedJob) -> Verification:
    """What a check says of it.

    Raises:
        VerificationFailed: it does not do what the graph does.
    """
    figures = Verification()
    with apply_ambient(job.job.ambient):
        program = compiled(job)
        eager, theirs = first_run(decode(job.job, blobs=job.blobs, admitted=Admitted()), job.job)
        compare(VerifyTask(job=job.job), eager.run(program), theirs, program, eager, figures)
    return figures
