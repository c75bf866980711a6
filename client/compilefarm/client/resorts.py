"""What a pod does about a graph for which it has no program of the farm: it compiles the graph, or runs it as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compilefarm.client.announcements import announce, announce_difference, announce_uncompiled
from compilefarm.client.config import OnFailure
from compilefarm.client.local import InputsChange, is_for_dynamo, is_of_compiler
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program, Switch
from compilefarm.client.records import RecordWriter
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.interruptions import raise_interruption

# The graph cannot be run at all, compiled or not.
_UNRUNNABLE = (InvalidRequest,)


class Resorts:
    """Programs without the farm: a compile where that is possible, else the uncompiled graph.

    Args:
        on_failure: "eager" leaves the compile out, unless the pod is to compile what is not stored; "error" leaves the
            uncompiled graph out.
    """

    def __init__(self, *, on_failure: OnFailure) -> None:
        self._on_failure = on_failure

    def take(self, graph: LocalGraph, *, writer: RecordWriter, defect: Exception | None = None) -> Program:
        """Returns the graph compiled here, or uncompiled where that is impossible. One log line says which, and why.

        Args:
            graph: the graph.
            writer: of the record of the graph, which says why there is no program of the farm.
            defect: what the client failed with, if that is why.

        Raises:
            InvalidRequest, GraphRejected: the graph came as a request, and means nothing here.
            Exception: with on_failure="error", what ended the compile.
        """
        obstacle = self._find_obstacle(graph, writer=writer)
        if obstacle:
            writer.resort_to("eager", obstacle=obstacle)
            announce(writer.record, defect=defect)
            return graph.eager()
        writer.resort_to("local")
        announce(writer.record, defect=defect)
        return self._compile(graph, writer=writer)

    def replace(self, graph: LocalGraph, *, writer: RecordWriter) -> Program:
        """Returns the same in place of a program of the farm that computes something else, at the first call of that
        program: Dynamo has finished with the graph. One log line says so.

        Args:
            graph: the graph.
            writer: of the record of the graph, which says what the program computes.
        """
        obstacle = self._find_late_obstacle(graph)
        writer.resort_to("eager" if obstacle else "local", obstacle=obstacle)
        announce_difference(writer.record)
        if obstacle:
            return graph.eager()
        try:
            return self._compile(graph, writer=writer)
        except Exception as error:  # noqa: BLE001 - logged; the uncompiled graph is right
            raise_interruption(error)
            _settle_for_eager(writer, error)
            return graph.eager()

    def _find_late_obstacle(self, graph: LocalGraph) -> str:
        if self._on_failure != "local":
            return "on_failure says so"
        return graph.find_late_obstacle() or graph.find_obstacle()

    def _find_obstacle(self, graph: LocalGraph, *, writer: RecordWriter) -> str:
        if self._on_failure == "error":
            return ""
        if self._on_failure == "eager" and writer.record.outcome != "local":
            return "on_failure says so"
        return graph.find_obstacle()

    def _compile(self, graph: LocalGraph, *, writer: RecordWriter) -> Program:
        if self._on_failure == "error":
            with writer.step("local"):
                return graph.compile()
        eager = graph.eager()
        try:
            with writer.step("local"):
                program = graph.compile()
        except _UNRUNNABLE:
            raise
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            _settle_for_eager(writer, error)
            return eager
        return _or_eager(program, eager=eager, retry=graph.retry, writer=writer)


def _or_eager(
    program: Program, *, eager: Program, retry: Callable[[Program, Sequence[Any]], Any], writer: RecordWriter
) -> Program:
    """Returns a program that becomes the uncompiled graph if its first call fails in a compiler."""

    def first(*inputs: Any) -> Any:
        try:
            result = program(*inputs)
        except Exception as error:
            raise_interruption(error)
            if not is_of_compiler(error):
                raise
            switch.program = eager
            _settle_for_eager(writer, error)
            try:
                return retry(eager, inputs)
            except InputsChange:
                # What was written before the failure cannot be told: this call fails, and later ones do not.
                raise error from None
        switch.program = program
        return result

    switch = Switch(first)
    return switch


def _settle_for_eager(writer: RecordWriter, error: Exception) -> None:
    writer.resort_to("eager", obstacle=f"{type(error).__name__}: {error}")
    announce_uncompiled(writer.record)
