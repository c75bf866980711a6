"""Inductor's freezing: what a graph makes of its weights alone is made once, and packed as kernels want it.

Torch keeps the results in the program, which is of one model then. Here it is said how they are made, and the program
takes them (torch/_inductor/freezing.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any
from unittest import mock

import torch
from torch._guards import TracingContext, tracing  # torch/_guards.py
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode  # torch/utils/_python_dispatch.py

from compilefarm.torch_internals.fake_tensors import FakeTensor, leaving_fake_mode
from compilefarm.torch_internals.operators import OpOverload, OpOverloadPacket, name_of_packet, schema_of
from compilefarm.torch_internals.pytrees import iterate_leaves
from compilefarm.torch_internals.settings import INDUCTOR

_COMPILE = "torch._inductor.compile_fx"
_FOLDING = "torch._inductor.constant_folding"
_FREEZING = "torch._inductor.freezing"
# What a step is called that takes one item of a result.
ITEM = "item"
# What is asked of tensors whatever they hold.
_QUESTIONS = frozenset(
    {"prim::device", "prim::layout", "aten::dim", "aten::is_contiguous", "aten::is_pinned", "aten::numel", "aten::size"}
    | {f"aten::sym_{name}" for name in ("is_contiguous", "numel", "size", "storage_offset", "stride")}
)
# Of operators that are run on synthetic weights. What kernels of other libraries do with these, nobody knows.
_FOLDED = frozenset({"aten", "mkl", "mkldnn", "onednn", "prims", "quantized_decomposed"})
_LITERALS = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class NotPreparable(Exception):
    """A weight was frozen in a way that cannot be done anew for other weights."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Stands for a tensor among the arguments of a step, by its number: weights first, then results of steps."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call of an operator.

    Attributes:
        operator: its name, with its overload ("aten::mul.Tensor"); ITEM takes one item of a result.
        args: plain values, tensors that the graph holds, and references.
        kwargs: the same.
    """

    operator: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is made of weights before a program runs.

    Attributes:
        weights: numbers of the inputs of the graph that it is made of; the program does not take these.
        forms: dtype, sizes and strides of each.
        steps: what is done, in order.
        results: what the program takes behind the other inputs: what its source calls each, and what it is.
        sizes: of each result, which the program was compiled for.
    """

    weights: Sequence[int]
    forms: Sequence[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]]
    steps: Sequence[Step]
    results: Mapping[str, Reference]
    sizes: Sequence[tuple[int, ...]]

    def split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The weights among the inputs of a graph, and the others."""
        weights = frozenset(self.weights)
        return [inputs[each] for each in self.weights], [x for n, x in enumerate(inputs) if n not in weights]


def preparation_of(graph: Any) -> Preparation | None:
    """What is made of weights before a compiled graph (CompiledFxGraph) runs, if anything is."""
    prepared: Preparation | None = getattr(graph, "preparation", None)
    return prepared


@contextmanager
def freezing_inputs(numbers: Sequence[int]) -> Iterator[None]:
    """Inside, Inductor freezes these inputs of the graph that it compiles, and the program says how.

    Stands in for what compiles a graph when AOTAutograd is done with it (torch/_inductor/compile_fx.py), and does what
    `fw_compiler_freezing` does there.
    """
    module: Any = importlib.import_module(_COMPILE)
    original = module.fx_codegen_and_compile

    def compile_frozen(graph: GraphModule, inputs: Sequence[Any], checked: Sequence[int], **given: Any) -> Any:
        weights = _freezable(graph, numbers)
        if not weights:
            return original(graph, inputs, checked, **given)
        return _compile_frozen(original, graph, inputs, weights, **given)

    module.fx_codegen_and_compile = compile_frozen if numbers else original
    try:
        yield
    finally:
        module.fx_codegen_and_compile = original


def _freezable(graph: GraphModule, numbers: Sequence[int]) -> list[int]:
    """Those of the inputs that are neither written to nor returned (torch/_inductor/freezing.py:
    replace_params_with_constants)."""
    metadata = TracingContext.get().fw_metadata
    assert metadata is not None
    if len(metadata.input_info) != len(graph.graph.find_nodes(op="placeholder")):
        raise NotPreparable("AOTAutograd has made other inputs of those of the graph")
    written = {number for number, info in enumerate(metadata.input_info) if info.mutation_type.name != "NOT_MUTATED"}
    returned = {info.base_idx for info in metadata.output_info}
    return [number for number in numbers if number not in written | returned]


def _compile_frozen(
    compile_graph: Callable[..., Any], graph: GraphModule, inputs: Sequence[Any], numbers: Sequence[int], **given: Any
) -> Any:
    module: Any = importlib.import_module(_COMPILE)
    freezing: Any = importlib.import_module(_FREEZING)
    recorder = _Recorder(held=_held_tensors(graph))
    placeholders = graph.graph.find_nodes(op="placeholder")
    kept = [each for number, each in enumerate(inputs) if number not in set(numbers)]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(module.detect_fake_mode(inputs), "allow_non_fake_inputs", True))
        channels_last = module.GraphLowering.decide_layout_opt(graph, is_inference=True)
        if channels_last:
            module.fake_tensor_prop(graph, inputs, True)
            freezing.convert_conv_weights_to_channels_last(graph)
        with freezing.enter_freezing(), leaving_fake_mode():
            for number in numbers:
                recorder.add_weight(graph, placeholders[number])
        stack.enter_context(INDUCTOR.patch({"freezing_discard_parameters": False}))
        # Without a context it takes all that is left for inputs.
        with tracing(None), recorder.recording():
            freezing.freeze(graph, graph, kept)
        given |= {"static_input_idxs": [], "layout_opt": channels_last}
        with _Following(recorder, graph):
            compiled = compile_graph(graph, kept, (), **given)
    compiled.preparation = recorder.preparation(compiled, weights=numbers)
    _leave_weights_out(compiled)
    return compiled


def _leave_weights_out(compiled: Any) -> None:
    """Has the program that was just compiled run with what was made of synthetic weights, whatever it is given."""
    program, preparation = compiled.current_callable, compiled.preparation

    def run(inputs: list[Any]) -> Any:
        _, others = preparation.split(inputs)
        inputs.clear()
        return program(others)

    compiled.current_callable = run


def _held_tensors(graph: GraphModule) -> dict[str, Any]:
    return {str(node.target): getattr(graph, str(node.target)) for node in graph.graph.find_nodes(op="get_attr")}


@dataclass(kw_only=True)
class _Recorder:
    """Takes down how constants come about that torch makes of weights.

    Attributes:
        held: what the graph holds beside, by name.
        made: of what torch has made: its number, by the name that the graph has for it.
        steps: as in `Preparation`.
        known: what nodes are in it.
        sizes: of what was made.
        forms: of the weights.
        followed: what was made of weights, by address: the tensor, and how it has come about.
        unsaid: the same of what cannot be made anew: the tensor, and why not.
        obstacle: why it cannot be said how a program is prepared; empty if it can.
    """

    held: Mapping[str, Any]
    made: dict[str, Reference] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    known: dict[Node, Reference] = field(default_factory=dict)
    sizes: dict[Reference, tuple[int, ...]] = field(default_factory=dict)
    forms: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    followed: dict[int, tuple[torch.Tensor, Reference]] = field(default_factory=dict)
    unsaid: dict[int, tuple[torch.Tensor, str]] = field(default_factory=dict)
    obstacle: str = ""

    def add_weight(self, graph: GraphModule, node: Node) -> None:
        """Puts a tensor of its kind in the place of a weight. What it holds decides nothing that is kept."""
        fake = node.meta["val"]
        value = _synthetic(fake)
        importlib.import_module(_FOLDING).replace_node_with_constant(graph, node, value)
        self._name(graph, Reference(len(self.forms)), value)
        self.forms.append((value.dtype, tuple(value.shape), value.stride()))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stands in for what puts constants in the place of nodes (torch/_inductor/constant_folding.py)."""
        module: Any = importlib.import_module(_FOLDING)
        original, deduce = module.replace_node_with_constant, module.ConstantFolder._deduce_value

        def replace(graph: GraphModule, node: Node, constant: torch.Tensor, name: Any = None) -> None:
            number = self._number(node)
            if not _is_of_known_size(node):
                raise NotPreparable(f"how large {node} is, is decided by what weights hold")
            original(graph, node, constant, name)
            self._name(graph, number, constant)

        def deduce_value(folder: Any, node: Node) -> Any:
            return deduce(folder, node) if _is_folded(node) else folder.unknown_value

        with (
            mock.patch.object(module, "replace_node_with_constant", replace),
            mock.patch.object(module.ConstantFolder, "_deduce_value", deduce_value),
        ):
            yield

    def preparation(self, compiled: Any, *, weights: Sequence[int]) -> Preparation:
        """What is to be done before a compiled graph runs, which holds nothing of weights afterwards.

        Raises:
            NotPreparable: it holds what was made of weights in a way that cannot be done anew.
        """
        if self.obstacle:
            raise NotPreparable(self.obstacle)
        results = {name: self.made[origin] for name, origin in compiled.frozen_param_names.items()}
        for name, tensor in [*compiled.constants.items()]:
            if id(tensor) in self.unsaid:
                raise NotPreparable(self.unsaid[id(tensor)][1])
            if id(tensor) in self.followed:
                results[name] = self.followed[id(tensor)][1]
                del compiled.constants[name]
        sizes = [self.sizes[each] for each in results.values()]
        return _without_dead_steps(
            Preparation(weights=weights, forms=self.forms, steps=self.steps, results=results, sizes=sizes)
        )

    def follow(self, tensor: torch.Tensor, made: Reference) -> None:
        """Notes how a tensor has come about, which is kept, so that its address stays its own."""
        self.followed[id(tensor)] = (tensor, made)
        self.sizes[made] = tuple(tensor.shape)

    def call(self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes down a call of an operator, if it takes what was made of weights.

        Raises:
            NotPreparable: what weights hold decides something.
        """
        given = [leaf for leaf in iterate_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = self.followed.keys() | self.unsaid.keys()
        if schema_of(operator).name in _QUESTIONS or not any(id(tensor) in known for tensor in given):
            return
        results = result if isinstance(result, list | tuple) else [result]
        if schema_of(operator).is_mutable or not all(isinstance(each, torch.Tensor) for each in results):
            self.obstacle = f"weights are read, or written to, by {operator} while the graph is lowered"
            raise NotPreparable(self.obstacle)
        if any(isinstance(each, FakeTensor) for each in results):
            # What it would look like, and nothing of what it holds.
            return
        try:
            made = self._add(operator, args, kwargs)
        except NotPreparable as error:
            self.unsaid |= {id(each): (each, str(error)) for each in results}
            return
        for number, each in enumerate(results):
            self.follow(each, made if each is result else self._step(ITEM, [made, number], {}))

    def _name(self, graph: GraphModule, made: Reference, constant: torch.Tensor) -> None:
        """Notes what the constant is that a graph was given last."""
        self.made[_last_made(graph)] = made
        self.sizes[made] = tuple(constant.shape)

    def _add(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reference:
        kwargs = {name: self._plain(each) for name, each in kwargs.items()}
        return self._step(_name_of(target), [self._plain(each) for each in args], kwargs)

    def _step(self, operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reference:
        self.steps.append(Step(operator=operator, args=args, kwargs=kwargs))
        return Reference(len(self.forms) + len(self.steps) - 1)

    def _number(self, node: Node) -> Reference:
        if node not in self.known:
            self.known[node] = self._add(node.target, node.args, node.kwargs)
        return self.known[node]

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Node):
            if value.op != "get_attr":
                return self._number(value)
            target = str(value.target)
            return self.made[target] if target in self.made else self.held[target]
        if id(value) in self.unsaid:
            raise NotPreparable(self.unsaid[id(value)][1])
        if isinstance(value, torch.Tensor):
            return self.followed[id(value)][1] if id(value) in self.followed else value
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        if not isinstance(value, _LITERALS):
            raise NotPreparable(f"a constant is made with {value!r}, a {type(value).__name__}")
        return value


class _Following(TorchDispatchMode):  # type: ignore[misc]  # torch says no types
    """Inside, it is taken down what becomes of constants of a graph that were made of weights."""

    def __init__(self, recorder: _Recorder, graph: GraphModule) -> None:
        super().__init__()
        self._recorder = recorder
        for node in graph.graph.find_nodes(op="get_attr"):
            if str(node.target) in recorder.made:
                recorder.follow(getattr(graph, str(node.target)), recorder.made[str(node.target)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._recorder.call(func, args, kwargs or {}, result)
        return result


def _synthetic(fake: torch.Tensor) -> torch.Tensor:
    """A tensor of a kind, some elements of which may be the same memory."""
    reached = 1 + sum((size - 1) * stride for size, stride in zip(fake.shape, fake.stride(), strict=True))
    memory = torch.randn(max(reached, 0)) if fake.dtype.is_floating_point else torch.zeros(max(reached, 0))
    return memory.to(fake.dtype).as_strided(fake.shape, fake.stride())


def _last_made(graph: Any) -> str:
    return f"_frozen_param{graph._frozen_param_count - 1}"


def _is_folded(node: Node) -> bool:
    return not isinstance(node.target, OpOverload) or schema_of(node.target).name.partition("::")[0] in _FOLDED


def _is_of_known_size(node: Node) -> bool:
    """Whether a node makes a tensor of the same size whatever weights hold, as fake tensors have it."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(isinstance(size, int) for size in value.shape)


def _name_of(target: Any) -> str:
    if target is getitem:
        return ITEM
    if isinstance(target, OpOverload):
        return str(target.name())
    if isinstance(target, OpOverloadPacket):
        return name_of_packet(target)
    raise NotPreparable(f"a constant is made by {target}")


def _without_dead_steps(preparation: Preparation) -> Preparation:
    """The same without steps of which nothing is made that the program takes."""
    first = len(preparation.weights)
    alive = {each.number for each in preparation.results.values()}
    for number in reversed(range(len(preparation.steps))):
        if first + number in alive:
            alive |= set(_references(preparation.steps[number]))
    places = {number: number for number in range(first)}
    kept = [number for number in range(len(preparation.steps)) if first + number in alive]
    places |= {first + number: first + place for place, number in enumerate(kept)}

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        return Reference(places[value.number]) if isinstance(value, Reference) else value

    def moved_step(step: Step) -> Step:
        kwargs = {name: moved(each) for name, each in step.kwargs.items()}
        return Step(operator=step.operator, args=moved(step.args), kwargs=kwargs)

    return replace(
        preparation,
        steps=[moved_step(preparation.steps[number]) for number in kept],
        results={name: moved(each) for name, each in preparation.results.items()},
    )


def _references(step: Step) -> Iterator[int]:
    waiting: list[Any] = [*step.args, *step.kwargs.values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, Reference):
            yield value.number
