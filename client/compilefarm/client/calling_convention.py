"""Adapts programs to how graphs are called: artifacts return several values, and hold no tensors of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compilefarm.client.options import Options
from compilefarm.client.programs import Program
from compilefarm.graph.messages import restore


def calls_modules(graph_module: Any) -> bool:
    """Whether a graph calls modules rather than what these compute."""
    return any(getattr(node, "op", None) == "call_module" for node in graph_module.graph.nodes)


def tracing_modules(graph_module: Any, *, backend: Program, options: Options | None) -> Program:
    """Returns a program that has Dynamo trace a graph and the modules which it calls, at its first call.

    Args:
        graph_module: the graph.
        backend: compiles what Dynamo captures.
        options: of Inductor.
    """
    import torch

    program: Program = torch.compile(graph_module, backend=backend, dynamic=False, options=dict(options or {}) or None)
    return program


def returns_one_value(graph_module: Any) -> bool:
    """Whether the graph returns the result of a node as it is, rather than a tuple or list."""
    import torch.fx

    return isinstance(_returned(graph_module), torch.fx.Node)


def in_plain_form(graph_module: Any) -> Any:
    """The graph as one that takes a value for each placeholder and returns a tuple or list: itself, or a copy that
    shares its parameters.
    """
    from compilefarm.torch_internals.graph_arguments import nests_arguments

    is_single = returns_one_value(graph_module)
    if not is_single and not nests_arguments(graph_module):
        return graph_module
    import torch.fx

    graph = torch.fx.Graph()
    values = graph.graph_copy(graph_module.graph, {})
    graph.output((values,) if is_single else values)
    plain = torch.fx.GraphModule(graph_module, graph)
    plain.meta.update(graph_module.meta)
    return plain


def as_called(graph_module: Any, program: Program) -> Program:
    """Returns a program that is called as a graph is: arguments by name or by place, nested as torch.export has them,
    and so are its results.

    Args:
        graph_module: the graph.
        program: of the graph in plain form.
    """
    from compilefarm.torch_internals.graph_arguments import flattening_of, nesting_of

    take, nest = flattening_of(graph_module), nesting_of(graph_module)
    program = first_of(program) if returns_one_value(graph_module) else program
    return lambda *args, **kwargs: nest(program(*take(*args, **kwargs)))


def first_of(program: Program) -> Program:
    """Returns a program that returns the first of the values that `program` returns."""

    def run(*inputs: Any) -> Any:
        return program(*inputs)[0]

    return run


def passing_held(program: Program, held: Sequence[Any]) -> Program:
    """Returns a program that passes the tensors that its graph holds after the inputs."""
    if not held:
        return program
    return lambda *inputs: program(*inputs, *held)


def restoring_messages(program: Program, messages: Sequence[str]) -> Program:
    """Returns a program whose errors have the messages of the graph's own assertions, which stayed in this process.

    Args:
        program: the program of the farm; its errors hold numbers in the place of messages.
        messages: the messages, by number.
    """
    if not messages:
        return program

    def run(*inputs: Any) -> Any:
        try:
            return program(*inputs)
        except Exception as error:
            error.args = tuple(restore(given, messages) if isinstance(given, str) else given for given in error.args)
            raise

    return run


def _returned(graph_module: Any) -> Any:
    return next(iter(reversed(graph_module.graph.nodes))).args[0]
