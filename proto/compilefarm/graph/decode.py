"""From a job back to a graph that can be compiled, or a refusal.

Nothing that a request names is imported or evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.constants import decode_constant
from compilefarm.graph.devices import decode_device
from compilefarm.graph.literals import ValueDecoder
from compilefarm.graph.targets import TENSOR_METHOD, find_objection, get_target, grows_without_tensors
from compilefarm.graph.tensors import decode_tensor
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import Call, Input
from compilefarm.v1.job_pb2 import Job

MAX_NODES = 200_000
# Marks in its meta a node that stands for a tensor which the graph holds.
CONSTANT = "constant"


class GraphRejected(Exception):
    """The request is well formed, but torch refuses the graph; a local compile would meet the same error.

    Attributes:
        error_type: Python type of torch's error ("builtins.RuntimeError").
    """

    def __init__(self, message: str, *, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type

    @classmethod
    def because(cls, error: Exception, *, where: str) -> GraphRejected:
        """The rejection that an error of torch amounts to."""
        kind = type(error)
        return cls(f"{where}: {error}", error_type=f"{kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedJob:
    """A graph that can be compiled.

    Attributes:
        graph_module: the graph; every node has meta["example_value"].
        inputs: what it is to be called with, as fake tensors.
        fake_mode: the mode of all fake tensors, with a ShapeEnv of its own.
    """

    graph_module: GraphModule
    inputs: list[FakeTensor]
    fake_mode: FakeTensorMode


def decode_job(job: Job, *, blobs: Mapping[str, bytes]) -> DecodedJob:
    """Rebuilds graph and inputs of a job, and runs the graph on fake tensors.

    It runs in the ambient state of this thread: call it under apply_ambient(job.ambient).

    Args:
        job: the request.
        blobs: bytes of the tensors that the graph holds, by digest.

    Raises:
        InvalidRequest: the request contradicts itself or names what is not allowed; the message names the node.
        MissingBlobs: bytes of a tensor that the graph holds are not among `blobs`.
        GraphRejected: torch refuses the graph.
    """
    constants = [
        (decode_constant(constant, blobs=blobs), decode_device(constant.spec.device))
        for constant in job.graph.constants
    ]
    decoded = DecodedJob(
        graph_module=_graph_module(_decode_graph(job, constants=constants)),
        inputs=[],
        fake_mode=FakeTensorMode(shape_env=ShapeEnv()),
    )
    decoded.inputs.extend(_fake_inputs(job.inputs, fake_mode=decoded.fake_mode))
    # The run gets inputs of its own, so that what the graph changes in them stays out of what is compiled for.
    _propagate(decoded, _fake_inputs(job.inputs, fake_mode=decoded.fake_mode))
    return decoded


def changes_constants(decoded: DecodedJob) -> bool:
    """Whether the graph writes to a tensor that it holds."""
    held = (node.meta["example_value"] for node in decoded.graph_module.graph.nodes if CONSTANT in node.meta)
    # Counts the writes through views of the tensor, too; zero for one that was just made.
    return any(tensor._version > 0 for tensor in held)


def decode_input(given: Input, *, number: int, empty: Any = torch.empty) -> torch.Tensor:
    """An input of a job; its elements are whatever `empty` (called as torch.empty is) leaves.

    Raises:
        InvalidRequest: its specification is malformed.
    """
    what = f"input {number}"
    if given.WhichOneof("kind") != "tensor":
        raise InvalidRequest(f"{what} is not set, or of a kind that is not known")
    # An input is no inference tensor, whatever mode the graph runs in.
    with torch.inference_mode(False):
        tensor = decode_tensor(given.tensor, what=what, empty=empty)
        return torch.nn.Parameter(tensor, requires_grad=tensor.requires_grad) if given.is_parameter else tensor


def _graph_module(graph: FxGraph) -> GraphModule:
    try:
        return GraphModule(torch.nn.Module(), graph)
    except Exception as error:
        # FX writes the graph as Python: an operator with too few operands, or an assignment to a literal, is none.
        raise GraphRejected.because(error, where="the graph cannot be written as Python") from error


def _decode_graph(job: Job, *, constants: Sequence[tuple[torch.Tensor, torch.device]]) -> FxGraph:
    graph = job.graph
    kinds = [node.WhichOneof("operation") for node in graph.nodes]
    if len(kinds) > MAX_NODES:
        raise InvalidRequest(f"the graph has {len(kinds)} nodes; at most {MAX_NODES} are taken")
    if kinds.count("output") != 1 or kinds[-1] != "output":
        raise InvalidRequest("a graph has exactly one output, which is its last node")
    if kinds.count("placeholder") != len(job.inputs) or any(kind != "placeholder" for kind in kinds[: len(job.inputs)]):
        raise InvalidRequest(
            f"the graph has {kinds.count('placeholder')} placeholders for {len(job.inputs)} inputs; it has to begin"
            " with one for each"
        )
    rebuilt = FxGraph()
    nodes: list[Node] = []
    values = ValueDecoder(nodes=nodes)
    for number, node in enumerate(graph.nodes):
        try:
            nodes.append(_decode_node(node, rebuilt, values, number=number, constants=constants))
        except InvalidRequest as error:
            raise InvalidRequest(f"node {number}: {error}") from None
    return rebuilt


def _decode_node(
    node: graph_pb2.Node,
    rebuilt: FxGraph,
    values: ValueDecoder,
    *,
    number: int,
    constants: Sequence[tuple[torch.Tensor, torch.device]],
) -> Node:
    match node.WhichOneof("operation"):
        case "placeholder":
            return rebuilt.placeholder(f"input_{number}")
        case "get_constant":
            if node.get_constant.constant >= len(constants):
                raise InvalidRequest(f"the graph holds no tensor with number {node.get_constant.constant}")
            return _write_constant(*constants[node.get_constant.constant], rebuilt)
        case "call":
            return _decode_call(node.call, rebuilt, values)
        case "output":
            return rebuilt.output(tuple(values.read(value) for value in node.output.values))
        case _:
            raise InvalidRequest("it does nothing, or something that is not known")


def _decode_call(call: Call, rebuilt: FxGraph, values: ValueDecoder) -> Node:
    target = get_target(call.kind, name=call.target)
    args = tuple(values.read(argument) for argument in call.args)
    kwargs = values.read_named(call.kwargs)
    objection = find_objection(call.kind, name=call.target, args=args, kwargs=kwargs)
    if objection is not None:
        raise InvalidRequest(f"{call.target}: {objection}")
    operation = "call_method" if call.kind == TENSOR_METHOD else "call_function"
    return rebuilt.create_node(operation, target, args, kwargs)


def _write_constant(tensor: torch.Tensor, device: torch.device, rebuilt: FxGraph) -> Node:
    """A node for a tensor that the graph holds.

    Its elements become literals: Inductor turns attributes of the GraphModule into further inputs, which a saved
    artifact then lacks; literals become constants inside it.
    """
    literal = tensor.flatten().tolist()
    flat = rebuilt.call_function(torch.tensor, (literal,), {"dtype": tensor.dtype, "device": device})
    node = rebuilt.call_method("view", (flat, tuple(tensor.shape)))
    node.meta[CONSTANT] = True
    return node


def _fake_inputs(inputs: Sequence[Input], *, fake_mode: FakeTensorMode) -> list[FakeTensor]:
    with fake_mode:
        return [decode_input(given, number=number) for number, given in enumerate(inputs)]


def _propagate(decoded: DecodedJob, inputs: Sequence[FakeTensor]) -> None:
    """Gives every node its meta["example_value"], as Dynamo does; AOTAutograd's cache passes graphs without it by."""
    unused = iter(inputs)
    # The graph may switch the grad mode; the context restores it even if the graph is cut short.
    with decoded.fake_mode, torch.set_grad_enabled(torch.is_grad_enabled()):
        for number, node in enumerate(decoded.graph_module.graph.nodes):
            node.meta["example_value"] = next(unused) if node.op == "placeholder" else _run(node, number=number)


def _run(node: Node, *, number: int) -> object:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda other: other.meta["example_value"])
    if node.op == "output":
        return args[0]
    if grows_without_tensors(node.target, args=args):
        raise InvalidRequest(f"node {number}: {_name(node)} is called on plain numbers or lists")
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)
    except Exception as error:
        # Whatever torch raises for a graph is an answer about the graph.
        raise GraphRejected.because(error, where=f"node {number} ({node.op} {_name(node)})") from error


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
