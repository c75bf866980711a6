"""What holds for any bytes that a client sends, or that lie in a file. Each function takes anything and raises what a
service or worker must never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import torch
from google.protobuf.message import DecodeError

from compilefarm.cli.facts import differences, facts_of
from compilefarm.cli.listing import code_of
from compilefarm.core.errors import FarmError, InvalidRequest, UnusableRequestFile
from compilefarm.core.keys import PART_NAMES, key_of
from compilefarm.core.recordings import file_of, words_of
from compilefarm.core.requests import pack_request, unpack_request
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.decode import GraphRejected, decode_job
from compilefarm.graph.options import config_patches
from compilefarm.service.validation import validate
from compilefarm.v1.job_pb2 import Job

from .seeds import blobs
from .watch import watched

MAX_NODES = 1000


def check_request(content: bytes) -> None:
    """Whatever comes as a job is taken or refused, by the gateway and, where that let it pass, by a worker."""
    try:
        job = Job.FromString(content)
    except DecodeError:
        return
    state = _state()
    with watched():
        _passes_or_refuses(lambda: validate(job, max_nodes=MAX_NODES))
        _passes_or_refuses(lambda: key_of(job))
        _passes_or_refuses(lambda: config_patches(job.options))
        _check_worker(job)
        _check_shown(job)
    assert _state() == state, f"the process was changed from {state} to {_state()}"


def check_request_file(content: bytes) -> None:
    """Whatever lies in a file is a request or is told to be none."""
    with watched():
        try:
            request = unpack_request(content)
        except UnusableRequestFile:
            return
        again = unpack_request(pack_request(request))
        # Messages that hold NaN do not equal themselves.
        assert again.job.SerializeToString(deterministic=True) == request.job.SerializeToString(deterministic=True)
        assert again.blobs == request.blobs
        assert file_of(again) == file_of(request)
        json.dumps(words_of(request))
        _check_shown(request.job)


def _check_worker(job: Job) -> None:
    try:
        with apply_ambient(job.ambient):
            decode_job(job, blobs=blobs())
    except FarmError:
        return
    except GraphRejected as error:
        cause = error.__cause__
    else:
        return
    assert not _is_about_memory(cause), f"it takes memory without bound: {cause}"


def _is_about_memory(error: BaseException | None) -> bool:
    # torch says it in these words (c10/core/impl/alloc_cpu.cpp), or in those of the C++ library.
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "not enough memory", "bad_alloc")
    )


def _check_shown(job: Job) -> None:
    lines = list(code_of(job))
    for name in PART_NAMES:
        lines += facts_of(getattr(job, name))
        lines += differences(job, Job(), part=name)
    assert all(line.isascii() and line.isprintable() for line in lines)


def _passes_or_refuses(check: Callable[[], object]) -> None:
    with suppress(InvalidRequest):
        check()


def _state() -> tuple[object, ...]:
    cuda = torch.backends.cuda
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        # The level of torch.vmap and its like.
        torch._C._functorch.maybe_current_level(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
