"""Adapts the request of a saved function to the machine that loads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.graph.options import recording_settings
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job


def adapt_job(
    job: Job,
    *,
    blobs: Mapping[str, bytes],
    environment: Callable[[EnvironmentNeeds], Environment],
    is_guarded: bool = False,
) -> EncodedJob:
    """Returns the job for this machine, for as many threads as this process has, and for its current GPU if any.

    The other settings that it was captured with, such as autocast or the precision of matrix products, stay: they
    belong to what was captured.

    Args:
        job: the job of another process. Its inputs are all that its program takes, tensors that its graph holds and
            changes among them.
        blobs: the bytes of the tensors that the graph holds, by digest.
        environment: describes this machine as far as the graph needs it.
        is_guarded: whether somebody checks before each call what was found of its sizes when it was captured.

    Raises:
        Bypass: sizes of the graph differ from call to call, and it is not guarded; or it communicates in process
            groups, and nobody says in which.
    """
    if job.symbols and not is_guarded:
        raise Bypass("dynamic_shapes", "sizes differ from call to call, and Dynamo is not there to check guards")
    if job.graph.process_groups:
        raise Bypass("process_group", "a saved function communicates in process groups that this process may not have")
    device = torch.cuda.current_device() if job.environment.HasField("cuda") else None
    needs = EnvironmentNeeds(
        cpu=job.environment.HasField("cpu"),
        cuda_device=device,
        operators={operator.name for operator in job.environment.operators},
        triton_kernels=job.environment.triton_kernels,
        libraries={library.name for library in job.environment.libraries},
    )
    adapted = Job()
    adapted.CopyFrom(job)
    adapted.environment.CopyFrom(environment(needs))
    if adapted.ambient.cpu_threads:
        adapted.ambient.cpu_threads = torch.get_num_threads()
    return EncodedJob(
        job=adapted,
        blobs=blobs,
        cuda_devices=() if device is None else (device,),
        symbols=(),
        held=(),
        recording=recording_settings(adapted.options),
    )
