"""Turns graphs into programs: those of the farm, or else what this process can do by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from compilefarm.client.announcements import announce_defect
from compilefarm.client.config import ClientConfig
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import CompileFailed
from compilefarm.client.farm_programs import FarmPrograms
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import CompileOptions, Options, merge_options
from compilefarm.client.programs import Program
from compilefarm.client.recorder import GraphRecorder
from compilefarm.client.records import Outcome, RecordWriter
from compilefarm.client.reports import Reporter
from compilefarm.client.resorts import Resorts
from compilefarm.client.runtime import Encoded
from compilefarm.core.errors import FarmError, NotStored
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass

Encode = Callable[[RecordWriter], Encoded]


class GraphCompiler:
    """Turns graphs into programs, whatever happens on the way.

    Args:
        config: says when to raise instead.
        dependencies: torch, time, and where graphs are noted.
        farm_programs: what the farm has.
        resorts: what this process does without the farm.
        recorder: takes note of what is asked.
        reporter: tells the farm what became of graphs.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        dependencies: Dependencies,
        farm_programs: FarmPrograms,
        resorts: Resorts,
        recorder: GraphRecorder,
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._dependencies = dependencies
        self._runtime = dependencies.runtime
        self._farm_programs = farm_programs
        self._resorts = resorts
        self._recorder = recorder
        self._reporter = reporter

    def compile_graph(
        self, graph_module: Any, example_inputs: Sequence[Any], *, asked: CompileOptions, name: str
    ) -> Program:
        """Returns a program for a graph that was captured in this process. Raises as `Farm.backend`."""
        options = cache(lambda: merge_options(mode=asked.mode, options=asked.options))
        # A mode or an option that torch does not know is the caller's mistake; a torch without modes is none.
        with suppress(ImportError, AttributeError):
            self._runtime.require_known_options(options())
        return self._compile(
            lambda writer: self._encode(graph_module, example_inputs, asked=asked, options=options(), writer=writer),
            graph=self._runtime.local_graph(graph_module, example_inputs, options=options),
            nodes=len(graph_module.graph.nodes),
            name=name,
        )

    def compile_request(self, request: Request) -> Program:
        """Returns a program for a graph that another process captured. Raises as `Farm.compile_request`."""
        encoded = self._runtime.encode_request(request)
        graph = self._runtime.local_graph_of_request(encoded)
        return self._compile(lambda _: encoded, graph=graph, nodes=len(request.job.graph.nodes))

    def _compile(self, encode: Encode, *, graph: LocalGraph, nodes: int, name: str = "") -> Program:
        writer = self._dependencies.ledger.open(name=name, nodes=nodes, clock=self._dependencies.clock)
        try:
            return self._from_farm_or_here(encode, graph=graph, writer=writer)
        finally:
            self._reporter.report(writer.record)

    def _from_farm_or_here(self, encode: Encode, *, graph: LocalGraph, writer: RecordWriter) -> Program:
        encoded, defect = None, None
        try:
            encoded = encode(writer)
            return self._savable(self._farm_programs.obtain(encoded, graph=graph, writer=writer), encoded)
        except (Bypass, CompileFailed, FarmError) as error:
            outcome = self._outcome_of(error)
            if self._settle(writer, outcome, reason=error.reason, message=str(error)):
                raise
            if encoded is not None and outcome == "eager":
                return self._savable(self._farm_programs.obtain_later(encoded, graph=graph, writer=writer), encoded)
        except Exception as error:
            if is_for_dynamo(error):
                raise
            # A defect of the client must not cost the pod its model.
            if self._settle(writer, "fallback", reason="defect", message=f"{type(error).__name__}: {error}"):
                raise
            defect = error
        return self._savable(self._resorts.take(graph, writer=writer, defect=defect), encoded)

    def _savable(self, program: Program, encoded: Encoded | None) -> Program:
        try:
            return self._runtime.savable(program, encoded)
        except Exception as error:  # noqa: BLE001 - logged; a program that cannot be saved can be run
            announce_defect(error, where="what torch needs to save a program")
            return program

    def _encode(
        self,
        graph_module: Any,
        example_inputs: Sequence[Any],
        *,
        asked: CompileOptions,
        options: Options,
        writer: RecordWriter,
    ) -> Encoded:
        with writer.step("encode"):
            try:
                encoded = self._runtime.encode(graph_module, example_inputs, options=options)
            except Exception as error:
                if not is_for_dynamo(error):
                    self._recorder.note_bypass(error, record=writer.record)
                raise
            arguments = self._runtime.describe_call(mode=asked.mode, options=asked.options)
            self._recorder.note_request(encoded, arguments=arguments, record=writer.record)
        return encoded

    def _outcome_of(self, error: Exception) -> Outcome:
        if isinstance(error, Bypass):
            return "bypass"
        on_miss = self._config.on_miss
        return on_miss if isinstance(error, NotStored) and on_miss in ("local", "eager") else "fallback"

    def _settle(self, writer: RecordWriter, outcome: Outcome, *, reason: str, message: str) -> bool:
        """Notes why there is no program of the farm; whether that is to be raised."""
        config = self._config
        raises = config.on_miss == "error" or (config.on_failure == "error" and outcome == "fallback")
        writer.close(None if raises else outcome, reason=reason, message=message)
        return raises
