"""Jobs to ask for."""

from __future__ import annotations

from collections.abc import Sequence

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
