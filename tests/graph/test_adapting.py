"""Requests of other processes, said for this one."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from compilefarm.graph.adapting import adapt_job
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.v1.environment_pb2 import Cpu, Environment
from compilefarm.v1.job_pb2 import Job


def here(needs: EnvironmentNeeds) -> Environment:
    assert (needs.cpu, needs.cuda_device, needs.triton_kernels) == (True, None, False)
    return Environment(torch="here", cpu=Cpu(architecture="mine"))


def elsewhere(needs: EnvironmentNeeds) -> Environment:
    return Environment(torch="elsewhere", cpu=Cpu(architecture="yours") if needs.cpu else None)


def captured() -> EncodedJob:
    graph_module = fx.symbolic_trace(lambda x: (x.relu() + torch.tensor([1.0, 2.0]),))
    return encode_job(graph_module, [torch.ones(3, 2)], options={}, environment=elsewhere)


def adapted(job: Job) -> EncodedJob:
    return adapt_job(job, blobs={}, environment=here)


def test_it_is_for_this_machine_and_as_many_threads_as_there_are() -> None:
    encoded = captured()
    encoded.job.ambient.cpu_threads = torch.get_num_threads() + 5
    found = adapt_job(encoded.job, blobs=encoded.blobs, environment=here)
    assert (found.job.environment.torch, found.job.environment.cpu.architecture) == ("here", "mine")
    assert found.job.ambient.cpu_threads == torch.get_num_threads()
    assert found.blobs == encoded.blobs
    assert encoded.job.environment.torch == "elsewhere"


def test_all_else_stays_as_it_was_captured() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = captured()
    found = adapted(encoded.job).job
    found.environment.CopyFrom(encoded.job.environment)
    assert found == encoded.job
    assert not found.ambient.grad_enabled
    assert found.ambient.autocast[0].enabled


def test_sizes_that_differ_are_refused() -> None:
    job = captured().job
    job.symbols.add(lower=2)
    with pytest.raises(Bypass, match="sizes differ from call to call"):
        adapted(job)
