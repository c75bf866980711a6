"""A graph as this process can compile or run it without a farm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from compilefarm.client.findings import Finding
from compilefarm.client.programs import Program


class LocalGraph(Protocol):
    """A graph, and what this process can do with it. `CapturedGraph` and `RequestedGraph` are two."""

    def find_obstacle(self) -> str:
        """Why this machine cannot compile the graph, for people; empty if it can."""

    def find_late_obstacle(self) -> str:
        """Why a compile of the graph has to begin while Dynamo traces it, for people; empty if it may begin later."""

    def compile(self) -> Program:
        """Compiles the graph."""

    def eager(self) -> Program:
        """Returns the graph as it is, to be called. What a compile does to the graph later does not change it."""

    def compare(self, program: Program, inputs: Sequence[Any]) -> Finding:
        """Compares a call of a program with the uncompiled graph; raises where they cannot be compared."""

    def retry(self, eager: Program, inputs: Sequence[Any]) -> Any:
        """Runs the uncompiled graph on inputs for which a compiled program failed.

        Raises:
            InputsChange: the inputs may have been written to.
        """
