"""Requests to look at, made without torch."""

from __future__ import annotations

from compilefarm.core.digests import digest_of
from compilefarm.service.testing.jobs import ENVIRONMENT
from compilefarm.v1.graph_pb2 import (
    Call,
    Constant,
    Device,
    Dimension,
    GetConstant,
    Graph,
    Input,
    NamedValue,
    Node,
    Output,
    Placeholder,
    TargetKind,
    TensorSpec,
    Value,
)
from compilefarm.v1.job_pb2 import Ambient, Autocast, Job, Options

TENSOR = bytes(24)


def spec(dtype: str, *shape: int, device: Device | None = None, requires_grad: bool = False) -> TensorSpec:
    """A contiguous tensor."""
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return TensorSpec(
        dtype=dtype,
        device=device or Device(type="cpu"),
        shape=[Dimension(size=size) for size in shape],
        stride=[Dimension(size=step) for step in stride[: len(shape)]],
        requires_grad=requires_grad,
    )


def call(kind: TargetKind.ValueType, target: str, *args: Value, **kwargs: Value) -> Node:
    """A node that calls."""
    named = [NamedValue(name=name, value=kwargs[name]) for name in sorted(kwargs)]
    return Node(call=Call(kind=kind, target=target, args=args, kwargs=named))


def small_job() -> Job:
    """A linear layer and what follows it: one call of each kind of target, and a tensor that the graph holds."""
    kinds = TargetKind
    nodes = [
        Node(placeholder=Placeholder()),
        Node(placeholder=Placeholder()),
        Node(get_constant=GetConstant(constant=0)),
        call(kinds.TARGET_KIND_TORCH_FUNCTION, "torch._C._nn.linear", Value(node=0), Value(node=1)),
        call(kinds.TARGET_KIND_TENSOR_METHOD, "sum", Value(node=3), Value(integer=-1), keepdim=Value(boolean=True)),
        call(kinds.TARGET_KIND_OPERATOR_OVERLOAD, "aten::add.Tensor", Value(node=4), Value(node=2)),
        call(kinds.TARGET_KIND_OPERATOR_PACKET, "aten::relu", Value(node=5)),
        call(kinds.TARGET_KIND_PYTHON_FUNCTION, "operator.mul", Value(node=6), Value(real=0.5)),
        Node(output=Output(values=[Value(node=7)])),
    ]
    held = Constant(spec=spec("int64", 3), digest=digest_of(TENSOR))
    return Job(
        graph=Graph(nodes=nodes, constants=[held]),
        inputs=[
            Input(tensor=spec("float32", 2, 4)),
            Input(tensor=spec("float32", 3, 4, requires_grad=True), is_parameter=True),
        ],
        options=Options(inductor=[NamedValue(name="max_autotune", value=Value(boolean=True))]),
        ambient=Ambient(
            grad_enabled=True,
            autocast=[Autocast(device_type="cpu", enabled=True, dtype="bfloat16")],
            float32_matmul_precision="highest",
            default_dtype="float32",
            cpu_threads=2,
            backends=[NamedValue(name="cudnn.allow_tf32", value=Value(boolean=False))],
        ),
        environment=ENVIRONMENT,
    )
