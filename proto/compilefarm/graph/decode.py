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

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import DigestMismatch, FarmError, InvalidRequest, MissingBlobs
from compilefarm.graph.literals import ValueDecoder
from compilefarm.graph.targets import TENSOR_METHOD, find_objection, get_target
from compilefarm.graph.tensors import decode_tensor, fill_tensor
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import Call, Constant, Input
from compilefarm.v1.job_pb2 import Job

MAX_NODES = 200_000


class GraphRejected(Exception):
    """The request is well formed, but torch refuses the graph; a local compile would meet the same error.

    Attributes:
        error_type: Python type of torch's error ("builtins.RuntimeError").
    """

    def __init__(self, message: str, *, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedJob:
    """A graph that can be compiled.

    Attributes:
        graph_module: the graph; every node has meta["example_value"], tensors that it holds are buffers.
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
        _decode_constant(constant, number=number, blobs=blobs) for number, constant in enumerate(job.graph.constants)
    ]
    module = torch.nn.Module()
    for number, constant in enumerate(constants):
        module.register_buffer(_constant_name(number), constant)
    decoded = DecodedJob(
        graph_module=GraphModule(module, _decode_graph(job)),
        inputs=[],
        fake_mode=FakeTensorMode(shape_env=ShapeEnv()),
    )
    decoded.inputs.extend(_fake_inputs(job.inputs, fake_mode=decoded.fake_mode))
    # The run gets inputs of its own, so that what the graph changes in them stays out of what is compiled for.
    _propagate(decoded, _fake_inputs(job.inputs, fake_mode=decoded.fake_mode))
    return decoded


def finds_constants_changed(job: Job, *, blobs: Mapping[str, bytes]) -> bool:
    """Whether the graph writes to a tensor that it holds, found by running it on fake tensors.

    Raises:
        GraphRejected: torch refuses the graph.
    """
    decoded = decode_job(job, blobs=blobs)
    held = (node.meta["example_value"] for node in decoded.graph_module.graph.find_nodes(op="get_attr"))
    # Counts writes through any view of the tensor, too; starts at zero for a fresh fake tensor.
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


def _decode_graph(job: Job) -> FxGraph:
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
            nodes.append(_decode_node(node, rebuilt, values, number=number, constants=len(graph.constants)))
        except InvalidRequest as error:
            raise InvalidRequest(f"node {number}: {error}") from None
    return rebuilt


def _decode_node(node: graph_pb2.Node, rebuilt: FxGraph, values: ValueDecoder, *, number: int, constants: int) -> Node:
    match node.WhichOneof("operation"):
        case "placeholder":
            return rebuilt.placeholder(f"input_{number}")
        case "get_constant":
            if node.get_constant.constant >= constants:
                raise InvalidRequest(f"the graph holds no tensor with number {node.get_constant.constant}")
            return rebuilt.create_node("get_attr", _constant_name(node.get_constant.constant))
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


def _constant_name(number: int) -> str:
    return f"constant_{number}"


def _decode_constant(constant: Constant, *, number: int, blobs: Mapping[str, bytes]) -> torch.Tensor:
    what = f"constant {number}"
    content = blobs.get(constant.digest)
    if content is None:
        raise MissingBlobs(f"the bytes of {what} ({constant.digest[:80]}) were not sent")
    if digest_of(content) != constant.digest:
        raise DigestMismatch(f"the bytes of {what} are not those of its digest {constant.digest}")
    # The specification is tried on memory that is not there before any is taken.
    if decode_tensor(constant.spec, what=what, empty=_meta).nbytes != len(content) or constant.spec.requires_grad:
        raise InvalidRequest(f"{what} does not have the {len(content)} bytes that were sent for it, or wants gradients")
    with torch.inference_mode(False):
        tensor = decode_tensor(constant.spec, what=what)
        if not tensor.is_contiguous() or tensor.storage_offset() != 0:
            raise InvalidRequest(f"{what} is not contiguous")
        fill_tensor(tensor, content, what=what)
    return tensor


def _meta(elements: int, **kwargs: Any) -> torch.Tensor:
    return torch.empty(elements, **(kwargs | {"device": "meta"}))


def _fake_inputs(inputs: Sequence[Input], *, fake_mode: FakeTensorMode) -> list[FakeTensor]:
    with fake_mode:
        return [decode_input(given, number=number) for number, given in enumerate(inputs)]


def _propagate(decoded: DecodedJob, inputs: Sequence[FakeTensor]) -> None:
    """Gives every node its meta["example_value"], as Dynamo does; AOTAutograd's cache passes graphs without it by."""
    module, fake_mode = decoded.graph_module, decoded.fake_mode
    unused = iter(inputs)
    held: dict[str, FakeTensor] = {}
    # The graph may switch the grad mode; the context restores it even if the graph is cut short.
    with fake_mode, torch.set_grad_enabled(torch.is_grad_enabled()):
        for number, node in enumerate(module.graph.nodes):
            if node.op == "placeholder":
                node.meta["example_value"] = next(unused)
            elif node.op == "get_attr":
                if node.target not in held:
                    held[node.target] = fake_mode.from_tensor(getattr(module, node.target))
                node.meta["example_value"] = held[node.target]
            else:
                node.meta["example_value"] = _run(node, number=number)


def _run(node: Node, *, number: int) -> object:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda other: other.meta["example_value"])
    if node.op == "output":
        return args[0]
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)
    except FarmError:
        raise
    except Exception as error:
        # Whatever torch raises for a graph is an answer about the graph.
        kind = type(error)
        raise GraphRejected(
            f"node {number} ({node.op} {_name(node)}): {error}", error_type=f"{kind.__module__}.{kind.__qualname__}"
        ) from error


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
