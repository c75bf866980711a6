"""Validates the form of requests, before anything is done with them.

Cheap and without torch: names of targets and dtypes are the worker's to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from compilefarm.core.digests import check_digest
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.expressions import check_expression, check_symbols
from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.core.process_groups import check_groups
from compilefarm.service.parsing import MOST_NESTED
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import (
    Call,
    Constant,
    Dimension,
    Graph,
    Input,
    Launch,
    NamedValue,
    Node,
    TensorSpec,
    Value,
)
from compilefarm.v1.job_pb2 import Job

# A graph of 100,000 calls has as many as that.
MAX_VALUES = 500_000
# Each is looked for in the store. Large tensors and parameters are inputs.
MAX_CONSTANTS = 4096
# The longest of real ones are schemas of operators, of a thousand characters. Python reads no number of more than 4300.
MAX_TEXT = 4096
# Definitions of Triton kernels.
MAX_SOURCE = 1024 * 1024
# Texts of one list: settings, instruction sets, names of parameters.
MAX_TEXTS = 1000
# Operators, or libraries, of an environment, and how large it is: what differs is shown, for each worker.
MAX_ENTRIES = 1000
MAX_ENVIRONMENT_BYTES = 128 * 1024


def validate(job: Job, *, max_nodes: int, max_values: int = MAX_VALUES) -> int:
    """Checks the form of a job. How much there is of it, values and texts, comes first, so that no more is looked at
    or shown in messages than is allowed. Returns how many values it has.

    Args:
        job: the job.
        max_nodes: that it may have.
        max_values: the same; those within others are counted.

    Raises:
        InvalidRequest: it contradicts itself; the message names the place.
    """
    values = _count_values(job, most=max_values)
    graph = job.graph
    nodes = _count_nodes(graph)
    if nodes > max_nodes:
        raise InvalidRequest(f"the graph has {nodes} nodes, more than the {max_nodes} that are allowed")
    _check_environment(job.environment)
    if len(graph.constants) > MAX_CONSTANTS:
        raise InvalidRequest(f"the graph holds {len(graph.constants)} tensors: at most {MAX_CONSTANTS} are allowed")
    check_groups(graph.process_groups)
    _check_outline(graph)
    placeholders = sum(node.HasField("placeholder") for node in graph.nodes)
    if placeholders != len(job.inputs):
        raise InvalidRequest(
            f"the graph has {placeholders} placeholders but the job describes {len(job.inputs)} inputs"
        )
    _check_nodes(graph, kernels=len(graph.kernels))
    if graph.kernels and not job.environment.triton_kernels:
        raise InvalidRequest("the graph holds Triton kernels, but its environment does not say so")
    for position, constant in enumerate(graph.constants):
        _check_constant(constant, where=f"constant {position}")
    check_symbols(job)
    for position, given in enumerate(job.inputs):
        _check_input(given, symbols=len(job.symbols), where=f"input {position}")
    for name, settings in (
        ("options.inductor", job.options.inductor),
        ("options.functorch", job.options.functorch),
        ("ambient.backends", job.ambient.backends),
    ):
        _check_named(settings, number=0, where=name)
    for settings, table in ((job.options.inductor, INDUCTOR), (job.options.functorch, FUNCTORCH)):
        for setting in settings:
            table.value_of(setting)
    return values


def _check_environment(environment: Environment) -> None:
    size_bytes = environment.ByteSize()
    if size_bytes > MAX_ENVIRONMENT_BYTES:
        raise InvalidRequest(
            f"the environment has {size_bytes} bytes: at most {MAX_ENVIRONMENT_BYTES} are allowed; a graph names only"
            " what it needs"
        )
    for name in ("operators", "libraries"):
        _check_length(getattr(environment, name), what=f"{name} of the environment", most=MAX_ENTRIES)


def _count_nodes(graph: Graph) -> int:
    return len(graph.nodes) + sum(map(_count_nodes, graph.subgraphs))


def _count_values(job: Job, *, most: int) -> int:
    count = sum(1 for _ in islice(_values_in(job), most + 1))
    if count > most:
        raise InvalidRequest(f"the job has more than the {most} values that are allowed")
    return count


def _values_in(job: Message) -> Iterator[Message]:
    """The messages that are nested in one, at any depth."""
    rest = [_below(job)]
    while rest:
        message = next(rest[-1], None)
        if message is None:
            rest.pop()
            continue
        yield message
        rest.append(_below(message))
        if len(rest) > MOST_NESTED:
            raise InvalidRequest(f"messages of the job are nested more than {MOST_NESTED} deep")


def _below(message: Message) -> Iterator[Message]:
    """The messages in one; raises InvalidRequest for texts in it that are too long or too many."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            if isinstance(value, Message):
                yield value
            else:
                yield from value
        elif isinstance(value, str):
            _check_text(value, field=field)
        elif not isinstance(value, int | float):
            _check_texts(value, field=field)


def _check_texts(entries: Sequence[object], *, field: FieldDescriptor) -> None:
    if field.type == FieldDescriptor.TYPE_STRING:
        _check_length(entries, what=field.full_name, most=MAX_TEXTS)
        for text in entries:
            _check_text(str(text), field=field)


def _check_text(text: str, *, field: FieldDescriptor) -> None:
    most = MAX_SOURCE if field.name == "source" else MAX_TEXT
    if len(text) > most:
        raise InvalidRequest(f"{field.full_name} has {len(text)} characters: at most {most} are allowed")


def _check_length(entries: Sized, *, what: str, most: int) -> None:
    if len(entries) > most:
        raise InvalidRequest(f"{what} are {len(entries)}: at most {most} are allowed")


def _check_nodes(graph: Graph, *, kernels: int) -> None:
    for number, node in enumerate(graph.nodes):
        _check_node(node, number=number, graph=graph)
        if node.HasField("launch"):
            _check_launch(node.launch, number=number, kernels=kernels)
    for subgraph in graph.subgraphs:
        if subgraph.constants or subgraph.kernels or subgraph.process_groups:
            raise InvalidRequest("a subgraph holds tensors, kernels or process groups, which only the graph itself may")
        _check_outline(subgraph)
        _check_nodes(subgraph, kernels=kernels)


def _check_outline(graph: Graph) -> None:
    kinds = [node.WhichOneof("operation") for node in graph.nodes]
    if not kinds:
        raise InvalidRequest("the graph has no nodes")
    placeholders = kinds.count("placeholder")
    for number, kind in enumerate(kinds):
        if kind is None:
            raise InvalidRequest(f"node {number} does nothing: its operation is not set")
        if kind == "placeholder" and number >= placeholders:
            raise InvalidRequest(f"node {number} is a placeholder, but placeholders come first")
        if (kind == "output") != (number == len(kinds) - 1):
            raise InvalidRequest(f"node {number} is {kind}: the last node, and no other, is the output")


def _check_node(node: Node, *, number: int, graph: Graph) -> None:
    where = f"node {number}"
    kind = node.WhichOneof("operation")
    if kind == "get_constant" and node.get_constant.constant >= len(graph.constants):
        raise InvalidRequest(
            f"{where} reads constant {node.get_constant.constant}, but the graph holds {len(graph.constants)}"
        )
    if kind == "get_subgraph" and node.get_subgraph.subgraph >= len(graph.subgraphs):
        raise InvalidRequest(
            f"{where} reads subgraph {node.get_subgraph.subgraph}, but the graph has {len(graph.subgraphs)}"
        )
    if kind == "call":
        _check_call(node.call, number=number, where=where)
    if kind == "output":
        _check_values(node.output.values, number=number, where=where)
        if node.output.HasField("result"):
            _check_value(node.output.result, number=number, where=where)


def _check_call(call: Call, *, number: int, where: str) -> None:
    if not call.kind or not call.target:
        raise InvalidRequest(f"{where} calls nothing: kind and target of a call have to be set")
    _check_values(call.args, number=number, where=where)
    _check_named(call.kwargs, number=number, where=where)


def _check_launch(launch: Launch, *, number: int, kernels: int) -> None:
    where = f"node {number}"
    if launch.kernel >= kernels:
        raise InvalidRequest(f"{where} launches kernel {launch.kernel}, but the graph holds {kernels}")
    _check_named(launch.arguments, number=number, where=where)
    _check_named(launch.descriptors, number=number, where=where)
    for grid in launch.grids:
        _check_values((grid.x, grid.y, grid.z), number=number, where=where)


def _check_values(values: Iterable[Value], *, number: int, where: str) -> None:
    for value in values:
        _check_value(value, number=number, where=where)


def _check_named(entries: Sequence[NamedValue], *, number: int, where: str) -> None:
    if not entries:
        return
    names = set()
    for named in entries:
        if not named.name or named.name in names:
            raise InvalidRequest(f"{where} has an argument or entry without a name of its own: {named.name[:80]!r}")
        names.add(named.name)
        _check_value(named.value, number=number, where=where)


def _check_value(value: Value, *, number: int, where: str) -> None:
    kind = value.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest(f"{where} has a value of no kind")
    if kind == "node":
        if value.node >= number:
            raise InvalidRequest(f"{where} refers to node {value.node}, but only nodes before it can be referred to")
    elif kind in ("list", "tuple"):
        _check_values(getattr(value, kind).items, number=number, where=where)
    elif kind == "dictionary":
        _check_named(value.dictionary.entries, number=number, where=where)
    elif kind == "slice":
        parts = (getattr(value.slice, name) for name in ("start", "stop", "step") if value.slice.HasField(name))
        _check_values(parts, number=number, where=where)


def _check_constant(constant: Constant, *, where: str) -> None:
    try:
        check_digest(constant.digest)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    _check_spec(constant.spec, symbols=0, where=where)


def _check_input(given: Input, *, symbols: int, where: str) -> None:
    match given.WhichOneof("kind"):
        case None:
            raise InvalidRequest(f"{where} is of no kind")
        case "tensor":
            _check_spec(given.tensor, symbols=symbols, where=where)
        case "integer":
            check_expression(given.integer, symbols=symbols, condition=False, what=where)


def _check_spec(spec: TensorSpec, *, symbols: int, where: str) -> None:
    if len(spec.shape) != len(spec.stride):
        raise InvalidRequest(f"{where} has {len(spec.shape)} sizes but {len(spec.stride)} strides")
    for dimension in (*spec.shape, *spec.stride):
        _check_dimension(dimension, symbols=symbols, where=where)
    if spec.HasField("storage_offset"):
        _check_dimension(spec.storage_offset, symbols=symbols, where=where)


def _check_dimension(dimension: Dimension, *, symbols: int, where: str) -> None:
    match dimension.WhichOneof("value"):
        case None:
            raise InvalidRequest(f"{where} has a size, stride or offset that is not set")
        case "expression":
            check_expression(dimension.expression, symbols=symbols, condition=False, what=where)
