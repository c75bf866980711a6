"""Decodes a job into a graph that can be compiled, or refuses it.

Nothing that a request names is imported or evaluated here; kernels in source come rebuilt, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from compilefarm.core.environments import KERNELS_REFUSED
from compilefarm.core.errors import InvalidRequest
from compilefarm.graph import arguments, running_calls, targets
from compilefarm.graph.ambient import keeping_attention_backends
from compilefarm.graph.annotations import decode_annotations
from compilefarm.graph.bodies import guarding_bodies, run_deferred
from compilefarm.graph.bounds import (
    OperatorCount,
    calls_views,
    find_excess,
    find_misplaced_view,
    find_unknown_view,
    grows,
)
from compilefarm.graph.checkpoint_policies import POLICIES, decode_policies
from compilefarm.graph.collectives import GroupName, as_plain_text, decode_groups
from compilefarm.graph.constants import decode_constant
from compilefarm.graph.devices import decode_device
from compilefarm.graph.fake_forms import corrected, find_fake_form
from compilefarm.graph.folding import bound_folding
from compilefarm.graph.freezing import frozen_inputs
from compilefarm.graph.higher_order import holds_graph
from compilefarm.graph.launches import decode_launch, find_written
from compilefarm.graph.leaves import as_result
from compilefarm.graph.literals import ValueDecoder
from compilefarm.graph.misfits import OPTIMIZERS, find_misfit
from compilefarm.graph.offsets import OffsetCheck
from compilefarm.graph.operators import base_of
from compilefarm.graph.pivots import PivotCheck
from compilefarm.graph.reached_operators import ReachCheck
from compilefarm.graph.symbols import NO_SYMBOLS, SymbolicJob, Symbols, make_symbols
from compilefarm.graph.targets import (
    TENSOR_METHOD,
    find_mode_entered,
    find_mode_left,
    get_target,
    leave_mode,
)
from compilefarm.graph.tensors import decode_tensor
from compilefarm.graph.texts import holds_text
from compilefarm.graph.writes import CONSTANT, INPUT, ResultSizes, WriteRecorder
from compilefarm.torch_internals.autograd import restoring_forward_mode
from compilefarm.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from compilefarm.torch_internals.operator_calls import Watcher, dispatching_in_python, watching_operators
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, schema_of
from compilefarm.torch_internals.symbolic_shapes import bindings_of
from compilefarm.torch_internals.traced_functions import DISABLE_HOOKS
from compilefarm.torch_internals.vmap import bounding_places
from compilefarm.v1 import graph_pb2
from compilefarm.v1.graph_pb2 import Call, Input
from compilefarm.v1.job_pb2 import Job

MAX_NODES = 200_000
MAX_SUBGRAPH_DEPTH = 8
# Why an operator may not run with some arguments; None if it may.
_OperatorCheck = Callable[[OpOverload, Sequence[Any], Mapping[str, Any]], str | None]
# In the meta of a node that stands for a tensor which the graph holds: the number of that.
_CONSTANT = "constant"


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
        inputs: what it is to be called with, as fake tensors and symbolic integers.
        fake_mode: the mode of all fake tensors, with a ShapeEnv of its own.
        symbolic: the symbols of the job, in that ShapeEnv.
        static_inputs: numbers of the inputs that are at the same place in memory at each call.
        frozen_inputs: numbers of the inputs of which the program may keep what it makes of them alone. Those that
            kernels believe are none: they would run on synthetic elements while the graph is compiled.
        writes: which inputs, and which tensors that it holds, the graph may write to.
        believed_inputs: numbers of the inputs whose elements kernels do not check (graph/offsets.py).
        repeat_inputs: those of them that are repeats and no offsets.
        pivot_inputs: numbers of the inputs that kernels swap rows by (graph/pivots.py).
    """

    graph_module: GraphModule
    inputs: list[FakeTensor | torch.SymInt]
    fake_mode: FakeTensorMode
    symbolic: SymbolicJob
    static_inputs: Sequence[int] = ()
    frozen_inputs: Sequence[int] = ()
    writes: WriteRecorder = field(default_factory=WriteRecorder)
    believed_inputs: set[int] = field(default_factory=set)
    repeat_inputs: set[int] = field(default_factory=set)
    pivot_inputs: set[int] = field(default_factory=set)

    @property
    def written_inputs(self) -> Set[int]:
        """Numbers of the inputs that the graph may write to."""
        return self.writes.written(INPUT)

    @property
    def written_constants(self) -> Set[int]:
        """Numbers of the tensors that the graph holds and may write to."""
        return self.writes.written(CONSTANT)

    @property
    def depends_on_elements(self) -> bool:
        """Whether sizes or integers within the graph depend on what elements its inputs have."""
        return any("unbacked_bindings" in node.meta for node in self.graph_module.graph.nodes)


def decode_job(
    job: Job, *, blobs: Mapping[str, bytes], operators: Set[str] = frozenset(), kernels: Sequence[object] = ()
) -> DecodedJob:
    """Rebuilds graph and inputs of a job, and runs the graph on fake tensors.

    It runs in the ambient state of this thread: call it under apply_ambient(job.ambient).

    Args:
        job: the request.
        blobs: bytes of the tensors that the graph holds, by digest.
        operators: names of the operators of other libraries than torch that it may call.
        kernels: the Triton kernels of the graph, in their order, as `triton_modules.build_kernels` makes them; none
            where source in a request must not be run, and such a request is refused.

    Raises:
        InvalidRequest: the request contradicts itself or names what is not allowed; the message names the node.
        MissingBlobs: bytes of a tensor that the graph holds are not among `blobs`.
        GraphRejected: torch refuses the graph.
    """
    constants = [
        (decode_constant(constant, blobs=blobs), decode_device(constant.spec.device))
        for constant in job.graph.constants
    ]
    if len(kernels) != len(job.graph.kernels):
        raise InvalidRequest(f"the graph holds Triton kernels: {KERNELS_REFUSED}")
    views = calls_views(job.graph)
    misplaced = find_misplaced_view(job) if views else None
    if misplaced is not None:
        raise InvalidRequest(misplaced)
    symbolic = make_symbols(job)
    reader = _GraphReader(
        constants=constants,
        operators=operators,
        kernels=kernels,
        process_groups=decode_groups(job.graph.process_groups),
    )
    decoded = DecodedJob(
        graph_module=reader.read(job.graph, inputs=len(job.inputs)),
        inputs=[],
        fake_mode=FakeTensorMode(shape_env=symbolic.shape_env, allow_fallback_kernels=False),
        symbolic=symbolic,
        static_inputs=[number for number, given in enumerate(job.inputs) if given.is_static],
        frozen_inputs=frozen_inputs(job),
    )
    decoded.inputs.extend(_fake_inputs(job.inputs, decoded))
    # The run gets inputs of its own, so that what the graph changes in them stays out of what is compiled for.
    further = (find_unknown_view,) if views else ()
    reach = ReachCheck(operators=operators)
    _propagate(decoded, _fake_inputs(job.inputs, decoded), reach=reach, further=further)
    _write_known_numbers(decoded.graph_module)
    believed = decoded.believed_inputs | decoded.pivot_inputs
    return replace(decoded, frozen_inputs=[number for number in decoded.frozen_inputs if number not in believed])


def decode_input(given: Input, *, number: int, symbols: Symbols = NO_SYMBOLS, empty: Any = torch.empty) -> Any:
    """An input of a job: an integer, or a tensor whose elements are whatever `empty` (called as torch.empty is) leaves.

    Raises:
        InvalidRequest: its specification is malformed.
    """
    what = f"input {number}"
    if given.WhichOneof("kind") == "integer":
        symbols.hint(given.integer, what=what)
        return symbols.value(given.integer)
    if given.WhichOneof("kind") != "tensor":
        raise InvalidRequest(f"{what} is not set, or of a kind that is not known")
    # An input is no inference tensor, whatever mode the graph runs in.
    with torch.inference_mode(False):
        tensor = decode_tensor(given.tensor, what=what, symbols=symbols, empty=empty)
        if given.is_result:
            if given.is_parameter or not tensor.requires_grad:
                raise InvalidRequest(f"{what} is a parameter, or wants no gradients, and cannot be a result")
            return as_result(tensor)
        return torch.nn.Parameter(tensor, requires_grad=tensor.requires_grad) if given.is_parameter else tensor


@dataclass(slots=True, kw_only=True)
class _GraphReader:
    """Rebuilds a graph and the graphs within it.

    Attributes:
        constants: the tensors that the graph holds, and where each lives; subgraphs hold none.
        operators: names of the operators of other libraries than torch that may be called.
        kernels: the Triton kernels that may be launched.
        process_groups: what the groups are called that it communicates in.
        nodes_left: how many nodes may still come.
        runs: how many nodes run when a graph runs that has been read, those of the graphs that it calls included.
        written: the nodes for tensors that the graph holds, by the numbers of these.
        first: the first node that is no placeholder.
    """

    constants: Sequence[tuple[torch.Tensor, torch.device]]
    operators: Set[str]
    kernels: Sequence[object]
    process_groups: Sequence[GroupName]
    nodes_left: int = MAX_NODES
    runs: dict[GraphModule, int] = field(default_factory=dict)
    written: dict[int, Node] = field(default_factory=dict)
    first: Node | None = None

    def read(self, graph: graph_pb2.Graph, *, inputs: int) -> GraphModule:
        """The graph that is compiled, which takes so many inputs."""
        kinds = _check_outline(graph)
        if kinds.count("placeholder") != inputs:
            raise InvalidRequest(f"the graph has {kinds.count('placeholder')} placeholders for {inputs} inputs")
        return self._read(graph, depth=0)

    def _read(self, graph: graph_pb2.Graph, *, depth: int) -> GraphModule:
        self.nodes_left -= len(graph.nodes)
        if self.nodes_left < 0:
            raise InvalidRequest(f"the graph has too many nodes; at most {MAX_NODES} are taken")
        if depth > MAX_SUBGRAPH_DEPTH:
            raise InvalidRequest(f"subgraphs are nested more than {MAX_SUBGRAPH_DEPTH} levels deep")
        root = torch.nn.Module()
        for number, subgraph in enumerate(graph.subgraphs):
            _check_outline(subgraph)
            setattr(root, _subgraph_name(number), self._read(subgraph, depth=depth + 1))
        rebuilt = FxGraph()
        nodes: list[Node] = []
        values = ValueDecoder(nodes=nodes, process_groups=self.process_groups)
        for number, node in enumerate(graph.nodes):
            try:
                nodes.append(self._read_node(node, graph, rebuilt, values, number=number, depth=depth))
                self._annotate(nodes[-1], node, root)
            except InvalidRequest as error:
                where = f"node {number}" if depth == 0 else f"node {number} of a subgraph"
                raise InvalidRequest(f"{where}: {error}") from None
        _check_modes(nodes)
        module = _graph_module(root, rebuilt)
        self.runs[module] = self._count_runs(module)
        return module

    def _annotate(self, rebuilt: Node, node: graph_pb2.Node, root: torch.nn.Module) -> None:
        annotations = list(node.annotations)
        if node.WhichOneof("operation") == "get_subgraph":
            getattr(root, str(rebuilt.target)).meta.update(decode_policies(annotations))
            annotations = [each for each in annotations if each.name != POLICIES]
        rebuilt.meta.update(decode_annotations(annotations))

    def _write_constant(self, rebuilt: FxGraph, *, number: int) -> Node:
        # Before all calls: where it is read first, a mode may have been entered that makes another tensor of it.
        if self.first is None:
            self.first = next((each for each in rebuilt.nodes if each.op != "placeholder"), None)
        with nullcontext() if self.first is None else rebuilt.inserting_before(self.first):
            return _write_constant(*self.constants[number], rebuilt, number=number)

    def _count_runs(self, module: GraphModule) -> int:
        """How many nodes run when a graph does: one that calls another some times, which calls a third as often, has
        few itself.
        """
        called: list[GraphModule] = []
        for node in module.graph.nodes:
            torch.fx.map_arg((node.args, node.kwargs), lambda each: called.extend(_subgraphs_at(each, module)))
        count = len(module.graph.nodes) + sum(map(self.runs.__getitem__, called))
        if count > MAX_NODES:
            raise InvalidRequest(f"graphs call each other so that more than {MAX_NODES} nodes run")
        return count

    def _read_node(
        self,
        node: graph_pb2.Node,
        graph: graph_pb2.Graph,
        rebuilt: FxGraph,
        values: ValueDecoder,
        *,
        number: int,
        depth: int,
    ) -> Node:
        match node.WhichOneof("operation"):
            case "placeholder":
                return rebuilt.placeholder(f"input_{number}")
            case "get_constant":
                number_held = node.get_constant.constant
                if depth or number_held >= len(self.constants):
                    raise InvalidRequest(f"the graph holds no tensor with number {number_held}")
                # Each is written once, however often it is read: it may have thousands of elements.
                if number_held not in self.written:
                    self.written[number_held] = self._write_constant(rebuilt, number=number_held)
                return self.written[number_held]
            case "get_subgraph":
                if node.get_subgraph.subgraph >= len(graph.subgraphs):
                    raise InvalidRequest(f"the graph has no subgraph with number {node.get_subgraph.subgraph}")
                return rebuilt.create_node("get_attr", _subgraph_name(node.get_subgraph.subgraph))
            case "call":
                return _decode_call(node.call, rebuilt, values, operators=self.operators)
            case "launch":
                return decode_launch(node.launch, rebuilt, values, kernels=self.kernels)
            case "output":
                if node.output.HasField("result") != (depth > 0):
                    raise InvalidRequest("a subgraph returns one structured value, the graph itself a list of values")
                results = values.read(node.output.result) if depth else tuple(map(values.read, node.output.values))
                if holds_text(results) or holds_graph(results):
                    raise InvalidRequest("a graph returns no text, no dictionary and no graph")
                return rebuilt.output(results)
            case _:
                raise InvalidRequest("it does nothing, or something that is not known")


def _subgraphs_at(node: Node, owner: GraphModule) -> list[GraphModule]:
    return [getattr(owner, str(node.target))] if node.op == "get_attr" else []


def _subgraph_name(number: int) -> str:
    return f"subgraph_{number}"


def _check_outline(graph: graph_pb2.Graph) -> list[str | None]:
    kinds = [node.WhichOneof("operation") for node in graph.nodes]
    if kinds.count("output") != 1 or kinds[-1] != "output":
        raise InvalidRequest("a graph has exactly one output, which is its last node")
    placeholders = kinds.count("placeholder")
    if any(kind != "placeholder" for kind in kinds[:placeholders]):
        raise InvalidRequest("a graph begins with its placeholders")
    return list(kinds)


def _check_modes(nodes: Sequence[Node]) -> None:
    """Modes are left in the opposite order in which they were entered, before the graph ends."""
    entered: list[tuple[str, Node]] = []
    for node in nodes:
        mode, left = find_mode_entered(node), find_mode_left(node)
        if mode is not None:
            if not _is_entered_again(mode, entered):
                entered.append((mode, node))
        elif left is not None:
            latest, by = entered.pop() if entered else ("none", None)
            told = node.args[0] if node.args else None
            if latest != left or (isinstance(told, Node) and told is not by):
                raise InvalidRequest(f"{left} is left in another order than it was entered")
    if entered:
        raise InvalidRequest(f"{entered[-1][0]} is entered and not left")


def _is_entered_again(mode: str, entered: Sequence[tuple[str, object]]) -> bool:
    """Whether entering a mode changes nothing, since it was entered before and has not been left.

    Hooks that are disabled already are disabled once more within, and again where that ends
    (torch/autograd/graph.py: disable_saved_tensors_hooks); it is the outermost end that enables them.
    """
    return mode == DISABLE_HOOKS and any(other == mode for other, _ in entered)


def _graph_module(root: torch.nn.Module, graph: FxGraph) -> GraphModule:
    try:
        return GraphModule(root, graph)
    except Exception as error:
        # FX writes the graph as Python: an operator with too few operands, or an assignment to a literal, is none.
        raise GraphRejected.because(error, where="the graph cannot be written as Python") from error


def _decode_call(call: Call, rebuilt: FxGraph, values: ValueDecoder, *, operators: Set[str]) -> Node:
    target = get_target(call.kind, name=call.target, operators=operators)
    args = tuple(values.read(argument) for argument in call.args)
    kwargs = values.read_named(call.kwargs)
    for find in (targets.find_objection, arguments.find_objection):
        objection = find(call.kind, name=call.target, args=args, kwargs=kwargs)
        if objection is not None:
            raise InvalidRequest(f"{call.target}: {objection}")
    args, kwargs = as_plain_text(args, kwargs)
    operation = "call_method" if call.kind == TENSOR_METHOD else "call_function"
    return rebuilt.create_node(operation, target, args, kwargs)


def _write_constant(tensor: torch.Tensor, device: torch.device, rebuilt: FxGraph, *, number: int) -> Node:
    """A node for a tensor that the graph holds.

    Its elements become literals: Inductor turns attributes of the GraphModule into further inputs, which a saved
    artifact then lacks; literals become constants inside it.
    """
    literal = tensor.flatten().tolist()
    flat = rebuilt.call_function(torch.tensor, (literal,), {"dtype": tensor.dtype, "device": device})
    node = rebuilt.call_method("view", (flat, tuple(tensor.shape)))
    node.meta[_CONSTANT] = number
    return node


def _write_known_numbers(graph_module: GraphModule) -> None:
    """Puts literals where a graph takes inputs that are known to be one number, which Dynamo guards in the pod.

    AOTAutograd makes a symbol of each (torch/_functorch/_aot_autograd/frontend_utils.py: process_inputs), and what the
    compiler then assumes of it could not be said, since no symbol of the request is meant.
    """
    known = {
        node: node.meta["example_value"]
        for node in graph_module.graph.find_nodes(op="placeholder")
        if type(node.meta["example_value"]) is int
    }
    for user in {user for node in known for user in node.users}:
        # Operators with subgraphs hand on what they are given, and do not all take literals.
        if not isinstance(user.target, HigherOrderOperator):
            user.args, user.kwargs = torch.fx.map_arg((user.args, user.kwargs), lambda each: known.get(each, each))
    graph_module.recompile()


def _fake_inputs(inputs: Sequence[Input], decoded: DecodedJob) -> list[FakeTensor | torch.SymInt]:
    with decoded.fake_mode:
        return [
            decode_input(given, number=number, symbols=decoded.symbolic.symbols) for number, given in enumerate(inputs)
        ]


def _propagate(
    decoded: DecodedJob,
    inputs: Sequence[FakeTensor | torch.SymInt],
    *,
    reach: ReachCheck,
    further: Sequence[_OperatorCheck],
) -> None:
    """Gives every node its meta["example_value"], as Dynamo does; AOTAutograd's cache passes graphs without it by."""
    unused = iter(inputs)
    writes = decoded.writes
    offsets, pivots = OffsetCheck(writes=writes), PivotCheck(writes=writes)
    for number, given in enumerate(inputs):
        if isinstance(given, torch.Tensor):
            offsets.know_input(given, number=number)
            pivots.know_input(given, number=number)
    # As Dynamo does it: without Python's dispatcher some operators take no symbols.
    with (
        decoded.fake_mode,
        dispatching_in_python(),
        watching_operators(_bounded(writes.watch, decoded, believed=(offsets, pivots), reach=reach, further=further)),
        bounding_places(),
        guarding_bodies(decoded.graph_module, reach=reach),
        _restoring_modes() as entered,
    ):
        for number, node in enumerate(decoded.graph_module.graph.nodes):
            is_input = node.op == "placeholder"
            with reach.running(node.target):
                value = next(unused) if is_input else _run(node, decoded.graph_module, number=number, writes=writes)
            if _CONSTANT in node.meta:
                writes.know(value, kind=CONSTANT, number=node.meta[_CONSTANT])
            mode = find_mode_entered(node)
            if mode is not None:
                if not _is_entered_again(mode, entered):
                    entered.append((mode, value))
            elif find_mode_left(node) is not None:
                entered.pop()
            node.meta["example_value"] = value
            if grows(value):
                raise InvalidRequest(f"node {number}: an integer grows beyond what any size is")
            # Sizes that depend on elements: Dynamo notes at which node each becomes known.
            bindings = bindings_of(decoded.symbolic.shape_env, value)
            if bindings:
                node.meta["unbacked_bindings"] = bindings
    for each in (offsets, pivots):
        if (change := each.believed.find_change(decoded.graph_module)) is not None:
            raise InvalidRequest(change)
    decoded.believed_inputs.update(offsets.believed.inputs)
    decoded.repeat_inputs.update(offsets.repeats)
    decoded.pivot_inputs.update(pivots.believed.inputs)
    # What the compiler makes of operators that were looked at is torch's own.
    decoded.fake_mode.allow_fallback_kernels = True


def _bounded(
    watch: Watcher,
    decoded: DecodedJob,
    *,
    believed: Sequence[OffsetCheck | PivotCheck],
    reach: ReachCheck,
    further: Sequence[_OperatorCheck],
) -> Watcher:
    """A watcher that refuses what asks for too much, before it runs."""
    count = OperatorCount(nodes=len(decoded.graph_module.graph.nodes))
    checks = (reach.find_objection, find_excess, find_misfit, *(each.find_misfit for each in believed), *further)

    def look(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        objection = count.find_excess() or next(filter(None, (find(operator, args, kwargs) for find in checks)), None)
        if objection is not None:
            raise InvalidRequest(f"{operator}: {objection}")
        bound_folding(operator, args, kwargs)
        # An operator without a fake form is run, on memory of the sizes that it is told. Of those the lists of fused
        # optimizers were just looked at; any other is refused.
        decoded.fake_mode.allow_fallback_kernels = base_of(operator.name()) in OPTIMIZERS
        of_results = (
            ResultSizes(())
            if decoded.writes.makes_results
            else ResultSizes.of_operator(schema_of(operator), args, kwargs)
        )
        with reach.running(operator):
            result = watch(operator, args, kwargs, lambda: _made(operator, args, kwargs, run))
        if (change := of_results.find_change()) is not None:
            raise InvalidRequest(f"{operator}: {change}")
        for each in believed:
            each.note(operator, args, kwargs, result)
        return result

    return look


def _made(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
    return corrected(operator, args, kwargs, (find_fake_form(operator, args) or run)())


@contextmanager
def _restoring_modes() -> Iterator[list[tuple[str, object]]]:
    """Graphs switch modes of the thread; they are as before afterwards, even if the graph is cut short.

    Yields a list for the modes that have been entered and not been left, each with what entering it gave.
    """
    entered: list[tuple[str, object]] = []
    with restoring_forward_mode(), torch.set_grad_enabled(torch.is_grad_enabled()), keeping_attention_backends():
        try:
            yield entered
        finally:
            for mode, value in reversed(entered):
                leave_mode(mode, value)


def _run(node: Node, owner: GraphModule, *, number: int, writes: WriteRecorder) -> object:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda other: other.meta["example_value"])
    if node.op == "output":
        return args[0]
    if node.op == "get_attr":
        return getattr(owner, str(node.target))
    misfit = running_calls.find_misfit(node.target, args=args, kwargs=kwargs)
    if misfit is not None:
        raise InvalidRequest(f"node {number} ({_name(node)}): {misfit}")
    writes.note(find_written(node, args=args, kwargs=kwargs))
    # Composite operators may compute it anew for tensors without elements (aten/src/ATen/native/LinearAlgebra.cpp:
    # matrix_rank_impl).
    writes.note([kwargs.get("out")])
    sizes = ResultSizes(kwargs.get("out"))
    of_torch = node.op == "call_function" and not isinstance(node.target, OpOverload | HigherOrderOperator)
    writes.makes_results = of_torch and kwargs.get("out") is not None
    result = _called(node, args, kwargs, number=number, writes=writes)
    if (change := sizes.find_change()) is not None:
        raise InvalidRequest(f"node {number} ({_name(node)}): {change}")
    return result


def _called(node: Node, args: Any, kwargs: Any, *, number: int, writes: WriteRecorder) -> object:
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if not isinstance(node.target, HigherOrderOperator):
            return node.target(*args, **kwargs)
        # Where gradients are wanted, torch 2.11 traces subgraphs in a fake mode of its own and finds ours in its way.
        with torch.no_grad(), writes.in_subgraphs((args, kwargs)):
            result = node.target(*args, **kwargs)
            run_deferred(node.target.name(), args)
            return result
    except InvalidRequest as error:
        raise InvalidRequest(f"node {number} ({_name(node)}): {error}") from None
    except Exception as error:
        # Whatever torch raises for a graph is an answer about the graph.
        raise GraphRejected.because(error, where=f"node {number} ({node.op} {_name(node)})") from error


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
