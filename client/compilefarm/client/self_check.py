"""Compares the first call of a program of the farm with the uncompiled graph, on copies of what the call is given.

The farm's own check runs what was decoded from the request; this runs what Dynamo captured, on values of the workload.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from compilefarm.client.findings import Finding
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program, Switch
from compilefarm.client.records import RecordWriter
from compilefarm.client.resorts import Resorts
from compilefarm.core.interruptions import raise_interruption

OnFinding = Callable[[str, Finding], None]


class SelfCheck:
    """Compares a sample of programs with their graphs, each at its first call.

    Args:
        fraction: of the programs, from 0 to 1.
        resorts: what takes the place of a program that computes something else.
        report: called with the key of a program and what was found.
        draw: returns a number from 0 up to 1 for each program; programs below the fraction are compared.
    """

    def __init__(
        self, *, fraction: float, resorts: Resorts, report: OnFinding, draw: Callable[[], float] = random.random
    ) -> None:
        self._fraction = fraction
        self._resorts = resorts
        self._report = report
        self._draw = draw

    def watch(
        self,
        program: Program,
        *,
        graph: LocalGraph,
        writer: RecordWriter,
        on_difference: Callable[[Program], None] = lambda _: None,
    ) -> Program:
        """Returns the program. If it is one of the sample, its first call finds out whether it is right. If not, a
        compile in this process, or the uncompiled graph, takes its place; `on_difference` is called with it."""
        if self._draw() >= self._fraction:
            return program

        def first(*inputs: Any) -> Any:
            finding = self._compare(program, inputs, graph=graph)
            writer.note_self_check(finding)
            # Calls of other threads meanwhile have no program that is known to be wrong.
            differs = finding.outcome == "differs"
            switch.program = self._resorts.replace(graph, writer=writer) if differs else program
            if differs:
                on_difference(switch.program)
            self._report(writer.record.key, finding)
            return switch.program(*inputs)

        switch = Switch(first)
        return switch

    def _compare(self, program: Program, inputs: Sequence[Any], *, graph: LocalGraph) -> Finding:
        try:
            return graph.compare(program, inputs)
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            # What cannot be compared is no proof, and the pod has to be served.
            return Finding(outcome="skipped", detail=f"{type(error).__name__}: {error}")
