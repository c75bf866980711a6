"""A graph that Dynamo captured in this process, compiled or run without a farm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compilefarm.client.compilers import find_obstacle
from compilefarm.client.findings import Finding
from compilefarm.client.local import (
    compile_graph,
    device_types_of,
    eager_program,
    has_symbols,
    run_unless_inputs_change,
    tensors_of,
)
from compilefarm.client.options import Options
from compilefarm.client.programs import Program


class CapturedGraph:
    """A graph that was captured in this process; a `LocalGraph`.

    Args:
        graph_module: the graph.
        example_inputs: one for each placeholder.
        options: returns the options of Inductor; called when the graph is compiled.
    """

    def __init__(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]) -> None:
        self._graph_module = graph_module
        self._example_inputs = example_inputs
        self._options = options

    def find_obstacle(self) -> str:
        return find_obstacle(device_types_of(self._example_inputs))

    def find_late_obstacle(self) -> str:
        return "its sizes differ from call to call" if has_symbols(self._graph_module) else ""

    def compile(self) -> Program:
        return compile_graph(self._graph_module, self._example_inputs, options=self._options())

    def eager(self) -> Program:
        return eager_program(self._graph_module)

    def compare(self, program: Program, inputs: Sequence[Any]) -> Finding:
        from compilefarm.client.comparison import compare
        from compilefarm.graph.collectives import calls_collectives
        from compilefarm.graph.launches import launches_kernels

        graph_module = self._graph_module
        if calls_collectives(graph_module):
            return Finding(outcome="skipped", detail="other ranks would not join in the collectives of another run")
        # Triton compiles them when the uncompiled graph runs.
        obstacle = find_obstacle(device_types_of(inputs)) if launches_kernels(graph_module) else ""
        if obstacle:
            return Finding(outcome="skipped", detail=f"it launches kernels that cannot be compiled here: {obstacle}")
        eager, held = eager_program(graph_module), tensors_of(graph_module)
        return compare(program, eager=eager, code=graph_module.code, inputs=inputs, held=held)

    def retry(self, eager: Program, inputs: Sequence[Any]) -> Any:
        return run_unless_inputs_change(eager, inputs, held=tensors_of(self._graph_module))
