"""Graphs with tensor subclasses, of compiled autograd, or with functions or steps of torch that no request can say, as
graphs of plain tensors: what AOTAutograd makes of them is sent to farms.

Subclasses are put together and taken apart in the pod, by torch; Dynamo guards what they are. Functions run in the pod
while they are traced, and so do the derivatives that compiled autograd, or a program, calls by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from compilefarm.graph import gradients, jagged
from compilefarm.graph.effect_tokens import leave_out_tokens
from compilefarm.graph.freezing import is_frozen
from compilefarm.graph.operators import is_of_torch, overloads_of
from compilefarm.graph.plain_attention import leave_choice_open, leave_out_seeds
from compilefarm.graph.saved_layouts import in_layouts_of
from compilefarm.graph.symbols import find_hint
from compilefarm.graph.targets import find_items, is_admitted_operator, is_known, nodes_of
from compilefarm.graph.tensors import is_plain
from compilefarm.torch_internals import dynamo
from compilefarm.torch_internals.decompositions import decomposition_tables
from compilefarm.torch_internals.operators import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    name_of_packet,
    schema_of,
)

Role = Literal["inference", "forward", "backward"]
# Noted beside nodes on the way to a plain graph, and decided by now: what is partitioned, and what values look like.
_KEPT = ("custom",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainGraph:
    """A graph of plain tensors that another graph amounts to, or a part of it.

    Attributes:
        role: which part; "inference" is all of it, without gradients.
        graph_module: the graph.
        inputs: fake ones.
    """

    role: Role
    graph_module: GraphModule
    inputs: Sequence[Any]


CompilePlain = Callable[[PlainGraph], Callable[..., Any]]


def needs_plain_graphs(graph_module: GraphModule, example_inputs: Sequence[object]) -> bool:
    """Whether Dynamo is tracing, and a graph takes lists of tensors, has tensors that are more than their elements,
    calls what is neither torch's nor an operator, or operators that no graph may call and that are made of others.
    """
    # What is frozen is not taken apart before.
    if not dynamo.is_tracing() or is_frozen(graph_module, {}):
        return False
    if any(map(dynamo.is_container, example_inputs)):
        return True
    noted = (node.meta.get("example_value") for node in graph_module.graph.nodes)
    has_subclasses = any(isinstance(value, torch.Tensor) and not is_plain(value) for value in (*example_inputs, *noted))
    return has_subclasses or any(map(_calls_function_of_others, graph_module.graph.nodes)) or _has_steps(graph_module)


def _has_steps(graph_module: GraphModule) -> bool:
    """Whether a graph, or one within it, calls operators of torch that no graph may call, each of which is taken apart
    (torch.ops.aten.gelu_backward in a function of autograd)."""
    steps = [target for target in {node.target for node in nodes_of(graph_module)} if _is_step(target)]
    if not steps:
        return False
    known = _decompositions()
    return all(any(each in known for each in _forms(step)) for step in steps)


def _is_step(target: object) -> bool:
    if isinstance(target, OpOverloadPacket):
        name = name_of_packet(target)
    elif isinstance(target, OpOverload):
        name = target.name()
    else:
        return False
    return is_of_torch(name) and not is_admitted_operator(name)


def _forms(target: object) -> Sequence[object]:
    return overloads_of(target) if isinstance(target, OpOverloadPacket) else [target]


def _calls_function_of_others(node: Node) -> bool:
    """Whether a node calls a function, or makes an object, that Dynamo was told to leave in graphs
    (torch.compiler.allow_in_graph), or a function of autograd among these, in a wrapper of Dynamo's.
    """
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, FunctionType | type):
        return False
    is_of_others = str(target.__module__).partition(".")[0] != "torch" or dynamo.is_of_dynamo(target)
    return is_of_others and find_items(node) is None and not is_known(node)


def compile_plain_graphs(
    graph_module: GraphModule, example_inputs: Sequence[Any], *, compile_plain: CompilePlain
) -> Callable[..., Any]:
    """Has the plain graphs compiled that a graph amounts to, and returns what is called in its place.

    Args:
        graph_module: as Dynamo captured it, which is tracing.
        example_inputs: one for each placeholder.
        compile_plain: compiles one graph.
    """
    # Half a second of imports that no other graph needs.
    from compilefarm.torch_internals.aot_autograd import compile_parts

    def compiler(role: Role) -> Callable[..., Any]:
        def compile_part(traced: GraphModule, inputs: Sequence[Any], static_inputs: Sequence[int]) -> Any:
            leave_out_tokens(traced)
            leave_choice_open(traced)
            gradients.leave_out_scales(traced)
            _strip(traced, static_inputs=static_inputs if role == "inference" else ())
            passed = _leave_out_objects(traced, inputs)
            # What autocast does is in the graph by now, and so are gradients.
            with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                taken = passed.taken(inputs)
                program = compile_plain(PlainGraph(role=role, graph_module=traced, inputs=taken))
                return passed.around(in_layouts_of(taken, program) if role == "backward" else program)

        return compile_part

    return compile_parts(
        graph_module,
        example_inputs,
        inference=compiler("inference"),
        forward=compiler("forward"),
        backward=compiler("backward"),
        decompositions=_decompositions(),
        prepare=leave_out_seeds,
    )


def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What operators are made of that no graph may call, gradients above all. Inductor does the same to nearly all."""
    # Some are registered when Inductor is imported.
    return {**_decompositions_of_torch(), **jagged.decompositions(), **gradients.decompositions()}


@functools.cache
def _decompositions_of_torch() -> Mapping[Any, Callable[..., Any]]:
    table = decomposition_tables()["post_autograd"]
    return {operator: decomposition for operator, decomposition in table.items() if _is_taken_apart(operator)}


def _is_taken_apart(target: object) -> bool:
    """Whether no graph may call an operator; "out_dtype" calls another that its arguments name."""
    if isinstance(target, HigherOrderOperator):
        return bool(target.name() == "out_dtype")
    return isinstance(target, OpOverload) and not is_admitted_operator(schema_of(target).name)


def _strip(traced: GraphModule, *, static_inputs: Sequence[int]) -> None:
    """Leaves beside the nodes of a graph what Dynamo would note there."""
    for module in traced.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            kept = {name: node.meta[name] for name in _KEPT if name in node.meta}
            node.meta = {"example_value": node.meta.get("val"), **kept}
    placeholders = traced.graph.find_nodes(op="placeholder")
    for number in static_inputs:
        placeholders[number].meta["tensor_dict"] = {dynamo.STATIC_MARK: True}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """Inputs of a graph that it does not compute with, and that it may return.

    Attributes:
        kept: numbers of the other inputs.
        returned: number of the input that is returned, by the position of the result.
    """

    kept: Sequence[int]
    returned: Mapping[int, int]

    def taken(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs that are computed with."""
        return [inputs[number] for number in self.kept]

    def around(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what takes all inputs, and returns all results, of a program that has none of the others."""

        def run(*inputs: Any) -> list[Any]:
            results = list(program(*self.taken(inputs)))
            for position in sorted(self.returned):
                results.insert(position, inputs[self.returned[position]])
            return results

        return run


def _leave_out_objects(traced: GraphModule, inputs: Sequence[Any]) -> _Passed:
    """Takes what no program computes with out of a graph that only hands it on."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    output = traced.graph.output_node()
    left_out = {
        node: number
        for number, (node, given) in enumerate(zip(placeholders, inputs, strict=True))
        if _is_no_value(given) and node.users.keys() <= {output}
    }
    results = output.args[0]
    output.args = (tuple(value for value in results if value not in left_out),)
    for node in left_out:
        traced.graph.erase_node(node)
    traced.recompile()
    return _Passed(
        kept=[number for number, node in enumerate(placeholders) if node not in left_out],
        returned={position: left_out[value] for position, value in enumerate(results) if value in left_out},
    )


def _is_no_value(given: object) -> bool:
    """Whether an input is the ragged size of nested tensors, which stands for many numbers, or an object such as the
    mesh of devices that DTensors of torch 2.15 bring along."""
    if isinstance(given, torch.SymInt):
        return find_hint(given) is None
    return not isinstance(given, torch.Tensor | int | float | torch.SymFloat | torch.SymBool)
