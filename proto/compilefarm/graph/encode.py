"""From what Dynamo hands to a backend to a job: everything that decides the result, as typed data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.ambient import capture_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.constants import encode_constant
from compilefarm.graph.decode import GraphRejected, changes_constants, decode_job
from compilefarm.graph.devices import DeviceNumbers
from compilefarm.graph.literals import ValueEncoder
from compilefarm.graph.options import capture_options
from compilefarm.graph.targets import find_objection, is_log_call, name_method, name_target
from compilefarm.graph.tensors import check_plain, encode_tensor, look_alike
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Call, Graph, Input
from compilefarm.v1.job_pb2 import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentNeeds:
    """Which facts of the machine decide whether a result runs on it.

    Attributes:
        cpu: the graph computes on the CPU.
        cuda_device: physical index of the GPU that it computes on; None if on none.
    """

    cpu: bool
    cuda_device: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedJob:
    """A job and what belongs to it.

    Attributes:
        job: the request.
        blobs: bytes of the tensors that the graph holds, by digest.
        cuda_devices: physical index of each CUDA device number in the request.
    """

    job: Job
    blobs: Mapping[str, bytes]
    cuda_devices: tuple[int, ...]


def encode_job(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, object],
    environment: Callable[[EnvironmentNeeds], Environment],
) -> EncodedJob:
    """Says a graph, its inputs, the options and the state of this thread as a job.

    Args:
        graph_module: the graph. Its output has to be a tuple or list, as Dynamo makes it; the caller wraps a single
            result.
        example_inputs: what it will be called with, one for each placeholder.
        options: Inductor options from mode= and options= of torch.compile, by dotted name.
        environment: describes this machine as far as the graph needs it.

    Raises:
        Bypass: something about it cannot be said faithfully.
    """
    writer = _GraphWriter(graph_module)
    inputs = writer.write(example_inputs)
    needs = _environment_needs(graph_module.graph, example_inputs, writer.devices)
    device_types = [name for name, used in (("cpu", needs.cpu), ("cuda", needs.cuda_device is not None)) if used]
    job = Job(
        graph=writer.encoded,
        inputs=inputs,
        options=capture_options(options, cuda=needs.cuda_device is not None),
        ambient=capture_ambient(device_types),
        environment=environment(needs),
    )
    if writer.blobs:
        _check_constants_unchanged(job, writer.blobs)
    return EncodedJob(job=job, blobs=writer.blobs, cuda_devices=writer.devices.cuda_devices)


@dataclass
class _GraphWriter:
    """Writes one graph."""

    graph_module: GraphModule
    encoded: Graph = field(default_factory=Graph)
    blobs: dict[str, bytes] = field(default_factory=dict)
    devices: DeviceNumbers = field(default_factory=DeviceNumbers)
    numbers: dict[Node, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)

    def write(self, example_inputs: Sequence[object]) -> list[Input]:
        """Writes all nodes and returns what the placeholders stand for."""
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(example_inputs):
            raise Bypass("input_count", f"{len(example_inputs)} inputs were given for {len(placeholders)} placeholders")
        inputs = _encode_inputs(placeholders, example_inputs, devices=self.devices)
        values = ValueEncoder(numbers=self.numbers, devices=self.devices)
        others = (node for node in self.graph_module.graph.nodes if node.op != "placeholder")
        for node in (*placeholders, *others):
            if node.op == "call_function" and is_log_call(node.target) and not node.users:
                continue
            self._node(node, values)
            self.numbers[node] = len(self.encoded.nodes) - 1
        return inputs

    def _node(self, node: Node, values: ValueEncoder) -> None:
        into = self.encoded.nodes.add()
        if node.op == "placeholder":
            if node.args:
                raise Bypass("default_value", f"the placeholder {node.target} has a default value")
            into.placeholder.SetInParent()
        elif node.op in ("call_function", "call_method"):
            _encode_call(node, into.call, values)
        elif node.op == "get_attr":
            into.get_constant.constant = self._constant(str(node.target))
        elif node.op == "output":
            into.output.SetInParent()
            results = node.args[0]
            if not isinstance(results, tuple | list):
                raise Bypass("output_structure", "the graph returns a single result; wrap it in a tuple")
            for result in results:
                values.write(result, into=into.output.values.add())
        else:
            raise Bypass("module_call", f"the graph calls the module {node.target}; capture it with Dynamo")

    def _constant(self, target: str) -> int:
        if target not in self.constants:
            self.constants[target] = len(self.encoded.constants)
            self._write_constant(target)
        return self.constants[target]

    def _write_constant(self, target: str) -> None:
        held = _attribute(self.graph_module, target)
        if isinstance(held, GraphModule):
            raise Bypass("subgraph", f"the graph refers to the subgraph {target}")
        if not isinstance(held, torch.Tensor):
            raise Bypass("attribute", f"the graph reads {target}, a {type(held).__name__}")
        constant = self.encoded.constants.add()
        content = encode_constant(
            held, into=constant, devices=self.devices, what=f"the tensor {target} that the graph holds"
        )
        self.blobs[constant.digest] = content


def _check_constants_unchanged(job: Job, blobs: Mapping[str, bytes]) -> None:
    # Graphs that hold tensors are rare, so that a run on fake tensors may be spent on each.
    try:
        # Inference tensors count no writes.
        with torch.inference_mode(False), torch.no_grad():
            changed = changes_constants(decode_job(job, blobs=blobs))
    except (GraphRejected, InvalidRequest) as error:
        raise Bypass("graph_state", f"the graph holds tensors and does not run on fake ones: {error}") from error
    if changed:
        raise Bypass("graph_state", "the graph changes a tensor that it holds itself")


def _attribute(module: object, path: str) -> object:
    for name in path.split("."):
        if not hasattr(module, name):
            raise Bypass("attribute", f"the graph reads {path}, which it does not have")
        module = getattr(module, name)
    return module


def _encode_call(node: Node, into: Call, values: ValueEncoder) -> None:
    into.kind, into.target = name_method(str(node.target)) if node.op == "call_method" else name_target(node.target)
    objection = find_objection(into.kind, name=into.target, args=node.args, kwargs=node.kwargs)
    if objection is not None:
        raise Bypass("unknown_target", f"the graph calls {into.target}: {objection}")
    _check_device_numbers(node)
    for argument in node.args:
        values.write(argument, into=into.args.add())
    for key in sorted(node.kwargs):
        values.write(node.kwargs[key], into=into.kwargs.add(name=key).value)


def _check_device_numbers(node: Node) -> None:
    """A plain number that means a device would be read as another device on another machine."""
    moves = node.op == "call_method" and node.target in ("cuda", "to")
    meant = (node.kwargs.get("device"), node.args[1] if moves and len(node.args) > 1 else None)
    if any(type(device) is int for device in meant):
        raise Bypass("device_number", f"the graph names a device by its number alone in a call of {node.target}")


def _encode_inputs(
    placeholders: Sequence[Node], example_inputs: Sequence[object], *, devices: DeviceNumbers
) -> list[Input]:
    inputs = []
    storages: dict[int, tuple[int, object]] = {}
    for number, (node, given) in enumerate(zip(placeholders, example_inputs, strict=True)):
        what = f"input {number}"
        tensor = _input_tensor(node, given, what=what)
        storage = given.untyped_storage()  # type: ignore[attr-defined]
        # torch keeps one Python object for a storage as long as somebody holds it.
        other, _ = storages.setdefault(id(storage), (number, storage))
        if other != number:
            raise Bypass("aliased_inputs", f"{what} shares memory with input {other}")
        encoded = Input(is_parameter=isinstance(given, torch.nn.Parameter))
        encode_tensor(tensor, into=encoded.tensor, devices=devices)
        inputs.append(encoded)
    return inputs


def _input_tensor(node: Node, given: object, *, what: str) -> torch.Tensor:
    """The tensor that describes an input: what Dynamo traced with, where it left that."""
    if isinstance(given, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Bypass("dynamic_shapes", f"{what} is a number; the farm takes static shapes so far")
    if not isinstance(given, torch.Tensor):
        raise Bypass("input_type", f"{what} is a {type(given).__module__}.{type(given).__qualname__}, not a tensor")
    check_plain(given, what=what)
    traced = node.meta.get("example_value")
    if not isinstance(traced, torch.Tensor):
        return given
    check_plain(traced, what=what)
    if not look_alike(traced, given):
        raise Bypass("input_mismatch", f"{what} differs in shape, strides or dtype from what the graph was traced with")
    return traced


def _environment_needs(graph: FxGraph, example_inputs: Sequence[object], devices: DeviceNumbers) -> EnvironmentNeeds:
    if not devices.cuda_devices:
        return EnvironmentNeeds(cpu=True, cuda_device=None)
    seen = (*example_inputs, *(node.meta.get("example_value") for node in graph.nodes))
    # Tensors without dimensions are scalars, which kernels of a GPU take as they are.
    on_cpu = any(tensor.device.type == "cpu" and tensor.dim() > 0 for tensor in _tensors(seen))
    return EnvironmentNeeds(cpu=on_cpu, cuda_device=devices.cuda_devices[0])


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
