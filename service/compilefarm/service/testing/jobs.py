"""Jobs to ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compilefarm.core.keys import Key, key_of
from compilefarm.service.active_job import ActiveJob, JobObserver
from compilefarm.service.callers import Caller
from compilefarm.service.clock import Clock
from compilefarm.service.durations import Kind, kind_of
from compilefarm.service.priorities import Priority
from compilefarm.service.requests import AdmittedRequest
from compilefarm.service.waiters import Waiters
from compilefarm.v1.environment_pb2 import Cpu, Environment
from compilefarm.v1.graph_pb2 import (
    Call,
    Constant,
    Graph,
    Input,
    Node,
    Output,
    Placeholder,
    TargetKind,
    TensorSpec,
    Value,
)
from compilefarm.v1.job_pb2 import Job

ENVIRONMENT = Environment(
    torch="2.15.0+cpu",
    torch_build="0123456789abcdef",
    python_abi="cpython-311-x86_64-linux-gnu",
    cpu=Cpu(architecture="x86_64", instruction_sets=["avx2", "fma"], glibc="2.36"),
)


def sample_job(
    target: str = "torch.relu", *, constants: Sequence[str] = (), environment: Environment = ENVIRONMENT
) -> Job:
    """A small job: calls `target` on its one input. Jobs of other targets have other keys.

    Args:
        target: the function.
        constants: digests of tensors that the graph holds.
        environment: where the artifact has to run.
    """
    call = Call(kind=TargetKind.TARGET_KIND_TORCH_FUNCTION, target=target, args=[Value(node=0)])
    nodes = [Node(placeholder=Placeholder()), Node(call=call), Node(output=Output(values=[Value(node=1)]))]
    held = [Constant(spec=TensorSpec(dtype="float32"), digest=digest) for digest in constants]
    inputs = [Input(tensor=TensorSpec(dtype="float32"))]
    return Job(graph=Graph(nodes=nodes, constants=held), inputs=inputs, environment=environment)


def admitted(job: Job, *, tenant: str = "", priority: Priority = Priority.INTERACTIVE) -> AdmittedRequest:
    """A request for a job that was let in."""
    key = key_of(job)
    caller = Caller(tenant=tenant)
    return AdmittedRequest(job=job, key=key, kind=kind_of(job, key=key), caller=caller, priority=priority)


def active_job(
    key: str = "",
    *,
    clock: Clock,
    tenant: str = "",
    priority: Priority = Priority.INTERACTIVE,
    environment: Environment = ENVIRONMENT,
    kind: Kind | None = None,
    observers: Sequence[JobObserver] = (),
) -> ActiveJob:
    """A job that was not begun.

    Args:
        key: by which it is known; empty: the one that it has.
        clock: time.
        tenant: for whom it is.
        priority: how urgent it is.
        environment: that it needs.
        kind: of jobs that take as long; None: its own.
        observers: are told of it.
    """
    request = admitted(sample_job(environment=environment), tenant=tenant, priority=priority)
    named = Key(text=key or request.key.text, parts=request.key.parts, format=request.key.format)
    return ActiveJob(
        replace(request, key=named, kind=kind or request.kind),
        namespace=request.caller.namespace,
        tenant=tenant,
        waiters=Waiters(priority, clock=clock),
        clock=clock,
        observers=observers,
    )
