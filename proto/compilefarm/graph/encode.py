"""Encodes a captured graph as a job: everything that decides the result, as typed data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from compilefarm.core.compiler_settings import asks_for_cuda_graphs
from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import arguments, targets
from compilefarm.graph.ambient import capture_ambient
from compilefarm.graph.annotations import check_module_annotations, encode_annotations
from compilefarm.graph.bounds import calls_views, find_misplaced_view
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.checkpoint_policies import encode_policies
from compilefarm.graph.collectives import ProcessGroups
from compilefarm.graph.computed_floats import with_computed_floats
from compilefarm.graph.computed_offsets import with_safe_offsets
from compilefarm.graph.constants import encode_constant, is_constant
from compilefarm.graph.contractions import CONTRACTION_LIBRARY, is_contraction, uses_contraction_library
from compilefarm.graph.custom_passes import PRE_GRAD, with_custom_passes
from compilefarm.graph.dead_nodes import find_dead_nodes
from compilefarm.graph.decode import (
    MAX_SUBGRAPH_DEPTH,
    GraphRejected,
    decode_job,
)
from compilefarm.graph.devices import DeviceNumbers
from compilefarm.graph.dtype_numbers import with_named_dtypes
from compilefarm.graph.dynamic_floats import (
    DecidingFloats,
    find_deciding,
    inexact_nodes,
    inputs_of,
    is_dynamic_float,
)
from compilefarm.graph.encoded_jobs import EncodedJob, EnvironmentNeeds
from compilefarm.graph.fixed_numbers import numbers_left_open, with_fixed_numbers
from compilefarm.graph.float_tensors import with_tensors_for_floats
from compilefarm.graph.freezing import FREEZING, is_frozen, mark_frozen
from compilefarm.graph.launches import KernelTable, encode_launch, is_launch
from compilefarm.graph.leaves import is_result
from compilefarm.graph.literals import ValueEncoder
from compilefarm.graph.looked_up_numbers import with_tensors_looked_up
from compilefarm.graph.messages import Messages
from compilefarm.graph.offsets import find_computed
from compilefarm.graph.operators import is_of_torch, name_function, takes_text
from compilefarm.graph.options import capture_options, recording_settings
from compilefarm.graph.pivots import find_unknown_pivots
from compilefarm.graph.symbols import SymbolTable
from compilefarm.graph.tangents import with_plain_tangents
from compilefarm.graph.targets import (
    OF_LIBRARIES,
    check_inner_calls,
    find_items,
    name_call,
)
from compilefarm.graph.tensors import check_plain, encode_tensor, look_alike
from compilefarm.graph.texts import holds_text
from compilefarm.graph.typed_constructors import with_plain_constructors
from compilefarm.graph.wide_results import with_plain_results
from compilefarm.graph.writes import find_storage
from compilefarm.torch_internals.dynamo import STATIC_MARK
from compilefarm.torch_internals.numpy_calls import name_numpy_call
from compilefarm.torch_internals.traced_functions import ENTER_AUTOCAST
from compilefarm.v1 import graph_pb2
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Call, Graph, Input, Value
from compilefarm.v1.job_pb2 import Job


def encode_job(
    graph_module: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, object],
    environment: Callable[[EnvironmentNeeds], Environment],
    holds_state: bool = False,
    is_functional: bool = False,
) -> EncodedJob:
    """Says a graph, its inputs, the options and the state of this thread as a job.

    Args:
        graph_module: the graph. Its output has to be a tuple or list, as Dynamo makes it; the caller wraps a single
            result.
        example_inputs: what it will be called with, one for each placeholder.
        options: Inductor options from mode= and options= of torch.compile, by dotted name.
        environment: describes this machine as far as the graph needs it.
        holds_state: tensors that the graph holds are known to others, who may change them between two calls: none of
            them is a constant.
        is_functional: AOTAutograd has made the graph: what it writes to overlaps no other input, now or later.

    Raises:
        Bypass: something about it cannot be said faithfully.
    """
    if not is_functional:
        # Before AOTAutograd, as in Inductor.
        graph_module = with_custom_passes(graph_module, options)
    frozen = is_frozen(graph_module, options)
    written: Set[str] = frozenset()
    captured = graph_module
    graph_module = _as_sent(captured)
    while True:
        try:
            writer = _GraphWriter(
                graph_module, written=written, holds_state=holds_state or frozen, is_functional=is_functional
            )
            encoded = _encode(writer, example_inputs, options, environment)
            if frozen:
                mark_frozen(encoded.job, range(len(example_inputs), len(encoded.job.inputs)))
            return encoded
        except _ConstantsWritten as error:
            written |= error.targets
        except _NumbersDecide as error:
            for number in error.numbers:
                # Dynamo guards that it is this one.
                int(number)
            graph_module = _as_sent(captured)


# What graphs have become before they are sent, by what is done to them, in this order.
_REWRITTEN = (
    with_plain_constructors,
    with_named_dtypes,
    with_fixed_numbers,
    with_tensors_looked_up,
    with_plain_tangents,
    with_safe_offsets,
    with_computed_floats,
    with_tensors_for_floats,
    with_plain_results,
)


def _as_sent(graph_module: GraphModule) -> GraphModule:
    for rewritten in _REWRITTEN:
        graph_module = rewritten(graph_module)
    return graph_module


class _NumbersDecide(Exception):
    """The graph runs for some numbers alone that its inputs hold.

    Attributes:
        numbers: all that it has.
    """

    def __init__(self, numbers: Sequence[torch.SymInt]) -> None:
        super().__init__()
        self.numbers = numbers


class _ConstantsWritten(Exception):
    """The graph may write to tensors that it holds: they are inputs rather than constants.

    Attributes:
        targets: their names in the graph.
    """

    def __init__(self, targets: Set[str]) -> None:
        super().__init__(", ".join(sorted(targets)))
        self.targets = targets


def _encode(
    writer: _GraphWriter,
    example_inputs: Sequence[object],
    options: Mapping[str, object],
    environment: Callable[[EnvironmentNeeds], Environment],
) -> EncodedJob:
    graph_module = writer.graph_module
    inputs = writer.write(example_inputs)
    check_inner_calls(graph_module)
    writer.encoded.kernels.extend(writer.kernels.described)
    writer.encoded.process_groups.extend(writer.process_groups.described)
    needs = _environment_needs((*example_inputs, *writer.held), writer=writer)
    device_types = [name for name, used in (("cpu", needs.cpu), ("cuda", needs.cuda_device is not None)) if used]
    job = Job(
        graph=writer.encoded,
        inputs=inputs,
        options=capture_options(
            options,
            cuda=needs.cuda_device is not None,
            without_effect=frozenset({PRE_GRAD, FREEZING}),
        ),
        ambient=capture_ambient(device_types, contracts=writer.contracts),
        environment=environment(needs),
        symbols=writer.symbols.symbols(),
        hints=writer.symbols.hints(),
    )
    if asks_for_cuda_graphs(job.options):
        _mark_static(job, writer)
    misplaced = find_misplaced_view(job)
    if misplaced is not None and calls_views(job.graph):
        raise Bypass("misplaced_view", misplaced)
    if numbers := numbers_left_open(graph_module):
        _check_numbers(job, writer, numbers=numbers)
    if writer.constants or writer.sharing:
        _check_unwritten(job, writer)
    if any(map(is_dynamic_float, targets.nodes_of(graph_module))):
        _check_undecided(job, writer)
    return EncodedJob(
        job=job,
        blobs=writer.blobs,
        cuda_devices=writer.devices.cuda_devices,
        symbols=tuple(writer.symbols.values),
        held=tuple(writer.held),
        messages=tuple(writer.messages.texts),
        process_groups=tuple(writer.process_groups.names),
        recording=recording_settings(job.options, options),
    )


@dataclass
class _GraphWriter:
    """Writes one graph."""

    graph_module: GraphModule
    encoded: Graph = field(default_factory=Graph)
    blobs: dict[str, bytes] = field(default_factory=dict)
    devices: DeviceNumbers = field(default_factory=DeviceNumbers)
    symbols: SymbolTable = field(default_factory=SymbolTable)
    numbers: dict[Node, int] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    written: Set[str] = frozenset()
    holds_state: bool = False
    is_functional: bool = False
    lifted: dict[str, int] = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)
    subgraphs: dict[str, int] = field(default_factory=dict)
    sharing: Set[int] = frozenset()
    operators: set[str] = field(default_factory=set)
    kernels: KernelTable = field(default_factory=KernelTable)
    messages: Messages = field(default_factory=Messages)
    process_groups: ProcessGroups = field(default_factory=ProcessGroups)
    contractions: list[Node] = field(default_factory=list)
    depth: int = 0
    dead_nodes: Set[Node] = field(init=False)

    def __post_init__(self) -> None:
        check_module_annotations(self.graph_module)
        self.dead_nodes = find_dead_nodes(self.graph_module.graph)

    @property
    def contracts(self) -> bool:
        """Whether an order of contractions is to be found."""
        return bool(self.contractions)

    def write(self, example_inputs: Sequence[object]) -> list[Input]:
        """Writes all nodes and returns what the placeholders stand for."""
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(example_inputs):
            raise Bypass("input_count", f"{len(example_inputs)} inputs were given for {len(placeholders)} placeholders")
        inputs = _encode_inputs(placeholders, example_inputs, devices=self.devices, symbols=self.symbols)
        held = dict(self._held_tensors())
        alone = _alone_in_memory((*example_inputs, *held.values()))
        for target, tensor in held.items():
            # What shares memory with others changes when those are written to.
            may_change = self.holds_state or target in self.written
            if may_change or not (is_constant(tensor) and id(tensor) in alone):
                self._lift(tensor, target=target, inputs=inputs)
        if not self.is_functional:
            given = enumerate((*example_inputs, *self.held))
            tensors = ((number, value) for number, value in given if isinstance(value, torch.Tensor))
            self.sharing = {number for number, value in tensors if id(value) not in alone}
        self.write_nodes()
        return inputs

    def write_nodes(self) -> None:
        """Writes all nodes, placeholders first."""
        placeholders = self.graph_module.graph.find_nodes(op="placeholder")
        values = ValueEncoder(numbers=self.numbers, devices=self.devices)
        for node in placeholders:
            self._node(node, values)
            self.numbers[node] = len(self.encoded.nodes) - 1
        for _ in self.lifted:
            self.encoded.nodes.add().placeholder.SetInParent()
        for node in self.graph_module.graph.nodes:
            if node.op == "placeholder" or node in self.dead_nodes:
                continue
            if node.op == "get_attr" and str(node.target) in self.lifted:
                self.numbers[node] = len(placeholders) + self.lifted[str(node.target)]
                continue
            items = find_items(node)
            if items is not None:
                # What takes a tuple sees neither names nor its type.
                values.note_tuple(node, items)
                continue
            self._node(node, values)
            self.numbers[node] = len(self.encoded.nodes) - 1

    def _node(self, node: Node, values: ValueEncoder) -> None:
        into = self.encoded.nodes.add()
        into.annotations.extend(encode_annotations(node))
        if node.op == "placeholder":
            if node.args:
                raise Bypass("default_value", f"the placeholder {node.target} has a default value")
            into.placeholder.SetInParent()
        elif is_launch(node):
            encode_launch(node, into=into.launch, values=values, kernels=self.kernels)
        elif node.op in ("call_function", "call_method"):
            _encode_call(node, into.call, values, messages=self.messages, process_groups=self.process_groups)
            if into.call.kind in OF_LIBRARIES and not is_of_torch(into.call.target):
                self.operators.add(into.call.target)
            if is_contraction(node):
                self.contractions.append(node)
        elif node.op == "get_attr":
            self._attribute(str(node.target), into)
        elif node.op == "output":
            into.output.SetInParent()
            results = node.args[0]
            if holds_text(results):
                raise Bypass("output_structure", "the graph returns text or a dictionary")
            if self.depth:
                values.write(results, into=into.output.result)
                return
            if not isinstance(results, tuple | list):
                raise Bypass("output_structure", "the graph returns a single result; wrap it in a tuple")
            for result in results:
                values.write(result, into=into.output.values.add())
        else:
            raise Bypass(
                "module_call",
                f"the graph calls the module {node.target} rather than what that computes; capture it with Dynamo, and"
                " with torch._dynamo.config.inline_inbuilt_nn_modules, which is the default",
            )

    def _held_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for node in self.graph_module.graph.find_nodes(op="get_attr"):
            if node not in self.dead_nodes:
                held = _attribute(self.graph_module, str(node.target))
                if isinstance(held, torch.Tensor):
                    yield str(node.target), held

    def _lift(self, held: torch.Tensor, *, target: str, inputs: list[Input]) -> None:
        self.lifted[target] = len(self.lifted)
        self.held.append(held)
        inputs.append(
            _encode_tensor_input(held, held, devices=self.devices, symbols=self.symbols, what=f"the tensor {target}")
        )

    def _attribute(self, target: str, into: graph_pb2.Node) -> None:
        held = _attribute(self.graph_module, target)
        if isinstance(held, GraphModule):
            if target not in self.subgraphs:
                self.subgraphs[target] = len(self.encoded.subgraphs)
                self._write_subgraph(held, what=target)
            into.get_subgraph.subgraph = self.subgraphs[target]
            into.annotations.extend(encode_policies(held, owner=self.graph_module))
        elif isinstance(held, torch.Tensor):
            if target not in self.constants:
                self.constants[target] = len(self.encoded.constants)
                self._write_constant(held, target=target)
            into.get_constant.constant = self.constants[target]
        else:
            raise Bypass("attribute", f"the graph reads {target}, a {type(held).__name__}")

    def _write_subgraph(self, held: GraphModule, *, what: str) -> None:
        if self.depth >= MAX_SUBGRAPH_DEPTH:
            raise Bypass("subgraph", f"the subgraph {what} is nested more than {MAX_SUBGRAPH_DEPTH} levels deep")
        writer = _GraphWriter(
            held,
            encoded=self.encoded.subgraphs.add(),
            blobs=self.blobs,
            devices=self.devices,
            operators=self.operators,
            kernels=self.kernels,
            messages=self.messages,
            process_groups=self.process_groups,
            contractions=self.contractions,
            depth=self.depth + 1,
        )
        writer.write_nodes()

    def _write_constant(self, held: torch.Tensor, *, target: str) -> None:
        if self.depth:
            raise Bypass("graph_state", f"a subgraph holds the tensor {target}")
        constant = self.encoded.constants.add()
        content = encode_constant(
            held, into=constant, devices=self.devices, what=f"the tensor {target} that the graph holds"
        )
        self.blobs[constant.digest] = content


def _check_numbers(job: Job, writer: _GraphWriter, *, numbers: Sequence[torch.SymInt]) -> None:
    """Checks that a graph runs without knowing numbers that are elements of its inputs."""
    # Few graphs have any.
    try:
        with torch.no_grad():
            decode_job(job, blobs=writer.blobs, operators=writer.operators, kernels=writer.kernels.kernels)
    except GraphRejected as error:
        raise _NumbersDecide(numbers) from error
    except InvalidRequest:
        # Whoever decodes it says so.
        return


def _check_unwritten(job: Job, writer: _GraphWriter) -> None:
    """Checks that the graph writes neither to its constants nor to inputs that share memory with others.

    Inputs that are only read may share memory without that deciding anything (AOTAutograd looks at it where one is
    written to: torch/_functorch/_aot_autograd/runtime_wrappers.py, merge_view_inputs).
    """
    # Such graphs are rare, so that a run on fake tensors may be spent on each.
    try:
        with torch.no_grad():
            decoded = decode_job(job, blobs=writer.blobs, operators=writer.operators, kernels=writer.kernels.kernels)
    except (GraphRejected, InvalidRequest) as error:
        what = "holds tensors" if writer.constants else "has inputs that share memory"
        raise Bypass("graph_state", f"the graph {what} and does not run on fake ones: {error}") from error
    written = {target for target, number in writer.constants.items() if number in decoded.written_constants}
    if written:
        raise _ConstantsWritten(written)
    shared = sorted(decoded.written_inputs & writer.sharing)
    if shared:
        raise Bypass("aliased_inputs", f"the graph writes to input {shared[0]}, which shares memory with another input")


def _mark_static(job: Job, writer: _GraphWriter) -> None:
    """Says which inputs are where they were at each call: those that Dynamo says are, and what the graph holds.

    As torch does (torch/_functorch/_aot_autograd/frontend_utils.py: _try_get_metadata_from_dynamo).
    """
    placeholders = writer.graph_module.graph.find_nodes(op="placeholder")
    for number, given in enumerate(job.inputs):
        noted = placeholders[number].meta.get("tensor_dict", {}) if number < len(placeholders) else {}
        given.is_static = number >= len(placeholders) or bool(noted.get(STATIC_MARK))


def _check_undecided(job: Job, writer: _GraphWriter) -> None:
    """Checks that nothing in the graph is decided by its floats that differ from call to call.

    Each is an input, a tensor of one float on the CPU that the graph reads, and Dynamo knows what it is now. On the
    worker nobody does, so that the program is for whatever it will be; what it decides could not be decided there.
    """
    if asks_for_cuda_graphs(job.options):
        # torch/_dynamo/variables/builder.py makes them constants then: wrap_symfloat
        raise Bypass("dynamic_float", "CUDA graphs are asked for, and a float differs from call to call")
    inexact = next(inexact_nodes(targets.nodes_of(writer.graph_module)), None)
    if inexact is not None:
        computed = f"{inexact} = {getattr(inexact.target, '__name__', inexact.target)}{inexact.args}"
        raise DecidingFloats(
            f"a float that differs from call to call is in a sum that may round: {computed}", inputs=inputs_of(inexact)
        )
    try:
        with torch.no_grad():
            decode_job(job, blobs=writer.blobs, operators=writer.operators, kernels=writer.kernels.kernels)
    except (GraphRejected, InvalidRequest) as error:
        reads = [node for node in writer.numbers if node.target == "item" and _is_float(node)]
        raise DecidingFloats(
            f"a float that differs from call to call decides something: {error}",
            inputs=find_deciding(error, reads),
        ) from error


def _is_float(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def _alone_in_memory(values: Sequence[object]) -> set[int]:
    """The id() of each tensor that shares its memory with no other, and occurs once."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    # torch keeps one Python object for a storage as long as somebody holds it.
    storages = [find_storage(tensor) for tensor in tensors]
    count = Counter(map(id, storages))
    return {id(tensor) for tensor, storage in zip(tensors, storages, strict=True) if count[id(storage)] == 1}


def _attribute(module: object, path: str) -> object:
    for name in path.split("."):
        if not hasattr(module, name):
            raise Bypass("attribute", f"the graph reads {path}, which it does not have")
        module = getattr(module, name)
    return module


def _encode_call(
    node: Node, into: Call, values: ValueEncoder, *, messages: Messages, process_groups: ProcessGroups
) -> None:
    into.kind, into.target, args = name_call(node)
    args, kwargs = messages.take(into.target, args, node.kwargs)
    args, kwargs = process_groups.take(into.target, args, kwargs)
    for reason, find in (("unknown_target", targets.find_objection), ("unknown_literal", arguments.find_objection)):
        objection = find(into.kind, name=into.target, args=args, kwargs=kwargs)
        if objection is not None:
            raise Bypass(reason, f"the graph calls {into.target}: {objection}")
    computed = find_computed(node, into.target) or find_unknown_pivots(node, into.target)
    if computed is not None:
        raise Bypass("computed_offsets", f"the graph calls {into.target}: {computed}")
    _check_device_numbers(node)
    if into.target == ENTER_AUTOCAST:
        # Its "cuda" is a kind of device.
        values = ValueEncoder(numbers={}, devices=None)
    for position, argument in enumerate(args):
        _write_argument(argument, values, node=node, name=position, into=into.args.add())
    for key in sorted(kwargs):
        _write_argument(kwargs[key], values, node=node, name=key, into=into.kwargs.add(name=key).value)


def _write_argument(argument: object, values: ValueEncoder, *, node: Node, name: int | str, into: Value) -> None:
    # The equation of einsum may read "cuda".
    if type(argument) is str and (
        node.target is torch.functional.einsum
        or name_numpy_call(node.target)
        or name_function(node.target)
        or takes_text(node.target, name)
    ):
        values.write_text(argument, into=into)
    else:
        values.write(argument, into=into)


def _check_device_numbers(node: Node) -> None:
    """A plain number that means a device would be read as another device on another machine."""
    moves = node.op == "call_method" and node.target in ("cuda", "to")
    meant = (node.kwargs.get("device"), node.args[1] if moves and len(node.args) > 1 else None)
    if any(type(device) is int for device in meant):
        raise Bypass("device_number", f"the graph names a device by its number alone in a call of {node.target}")


def _encode_inputs(
    placeholders: Sequence[Node], example_inputs: Sequence[object], *, devices: DeviceNumbers, symbols: SymbolTable
) -> list[Input]:
    inputs = []
    for number, (node, given) in enumerate(zip(placeholders, example_inputs, strict=True)):
        what = f"input {number}"
        traced = node.meta.get("example_value")
        if isinstance(given, torch.SymInt) or (type(given) is int and isinstance(traced, torch.SymInt)):
            symbol = traced if isinstance(traced, torch.SymInt) else given
            inputs.append(Input(integer=symbols.encode(symbol, what=what)))
            continue
        tensor = _input_tensor(node, given, what=what)
        inputs.append(_encode_tensor_input(tensor, given, devices=devices, symbols=symbols, what=what))
    return inputs


def _encode_tensor_input(
    tensor: torch.Tensor, given: object, *, devices: DeviceNumbers, symbols: SymbolTable, what: str
) -> Input:
    check_plain(tensor, what=what)
    encoded = Input(is_parameter=isinstance(given, torch.nn.Parameter))
    encode_tensor(tensor, into=encoded.tensor, devices=devices, symbols=symbols, what=what)
    if isinstance(given, torch.Tensor):
        # What Dynamo traced with has been written to by the graph.
        encoded.tensor.requires_grad = given.requires_grad
        encoded.is_result = is_result(given)
    return encoded


def _input_tensor(node: Node, given: object, *, what: str) -> torch.Tensor:
    """The tensor that describes an input: what Dynamo traced with, where it left that."""
    if isinstance(given, int | float | torch.SymFloat | torch.SymBool):
        raise Bypass("number_input", f"{what} is a {type(given).__name__}; the farm takes tensors and dynamic integers")
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


def _environment_needs(example_inputs: Sequence[object], *, writer: _GraphWriter) -> EnvironmentNeeds:
    cuda_devices, on_cpu = writer.devices.cuda_devices, True
    if cuda_devices:
        seen = (*example_inputs, *(node.meta.get("example_value") for node in writer.numbers))
        # Tensors without dimensions are scalars, which kernels of a GPU take as they are.
        on_cpu = any(tensor.device.type == "cpu" and tensor.dim() > 0 for tensor in _tensors(seen))
    return EnvironmentNeeds(
        cpu=on_cpu,
        cuda_device=cuda_devices[0] if cuda_devices else None,
        operators=writer.operators,
        triton_kernels=bool(writer.kernels.kernels),
        libraries=frozenset({CONTRACTION_LIBRARY} if writer.contracts and uses_contraction_library() else ()),
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
