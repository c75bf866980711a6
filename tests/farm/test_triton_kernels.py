"""Graphs with Triton kernels of users, and farms that take them or do not. Without a GPU none can be compiled."""

from __future__ import annotations

import grpc
import pytest
import torch

from compilefarm.graph.encode import encode_job
from compilefarm.graph.testing import trace
from compilefarm.loader.environment import describe_environment
from compilefarm.v1.compile_service_pb2 import CompileRequest, Finished
from compilefarm.v1.compile_service_pb2_grpc import CompileServiceStub

from .serving import ServedFarm

pytest.importorskip("triton")


@pytest.fixture
def request_with_kernel(monkeypatch: pytest.MonkeyPatch) -> CompileRequest:
    from tests.graph.triton_programs import add

    # Dynamo looks for a GPU before it takes anything for a kernel, and for nothing else of it.
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_, **__: True)
    graph = trace(add, torch.ones(300), torch.ones(300))
    encoded = encode_job(graph.graph_module, graph.example_inputs, options={}, environment=describe_environment)
    return CompileRequest(job=encoded.job)


def ask(farm: ServedFarm, request: CompileRequest) -> Finished:
    """How a compile ends.

    Raises:
        grpc.RpcError: the farm refuses it.
    """
    with grpc.insecure_channel(farm.address) as channel:
        *_, last = CompileServiceStub(channel).Compile(request, timeout=120)
    return last.finished


def test_a_farm_takes_no_kernels_unless_it_is_told_to(farm: ServedFarm, request_with_kernel: CompileRequest) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ask(farm, request_with_kernel)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "Triton kernels of the user's own are wanted: they are source code" in refused.value.details()
    assert "serve --allow-triton-kernels" in refused.value.details()


def test_a_farm_that_takes_kernels_hands_them_to_inductor(
    request_with_kernel: CompileRequest, library_farm: ServedFarm
) -> None:
    failure = ask(library_farm, request_with_kernel).failure
    # Which finds no GPU, as Triton says in one release and torch in another.
    assert failure.error_type == "torch._inductor.exc.InductorError"
    assert "0 active drivers" in failure.message or "triton not built" in failure.message
