"""Turns graphs into programs: those of the farm, or else what this process can do by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from compilefarm.client.attempts import Attempts, Encode, Unserved
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import Delivery
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import CompileOptions, Options, merge_options
from compilefarm.client.parts import Part, PartsCompiler, Whole
from compilefarm.client.programs import Program
from compilefarm.client.recorder import GraphRecorder
from compilefarm.client.records import RecordWriter
from compilefarm.client.reports import Reporter
from compilefarm.client.resorts import Resorts
from compilefarm.client.runtime import Encoded
from compilefarm.core.interruptions import raise_interruption
from compilefarm.core.requests import Request

if TYPE_CHECKING:
    from compilefarm.graph.plain_graphs import PlainGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What torch.compile was called with.

    Attributes:
        arguments: as it was called.
        options: returns the options of Inductor that this comes to.
    """

    arguments: CompileOptions
    options: Callable[[], Options]


class GraphCompiler:
    """Turns graphs into programs, whatever happens on the way.

    Args:
        dependencies: torch, time, and where graphs are noted.
        attempts: asks the farm.
        parts: compiles graphs with tensor subclasses.
        resorts: what this process does without the farm.
        recorder: takes note of what is asked.
        reporter: tells the farm what became of graphs.
    """

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        attempts: Attempts,
        parts: PartsCompiler,
        resorts: Resorts,
        recorder: GraphRecorder,
        reporter: Reporter,
    ) -> None:
        self._dependencies = dependencies
        self._runtime = dependencies.runtime
        self._attempts = attempts
        self._parts = parts
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
        all_asked = _Asked(arguments=asked, options=options)
        graph = self._runtime.local_graph(graph_module, example_inputs, options=options)
        nodes = len(graph_module.graph.nodes)
        if self._needs_plain_graphs(graph_module, example_inputs):
            whole = Whole(graph=graph, nodes=nodes, name=name)
            return self._compile_parts(graph_module, example_inputs, whole=whole, asked=all_asked)
        return self._compile(
            lambda writer: self._encode(
                lambda: self._runtime.encode(graph_module, example_inputs, options=options()),
                asked=asked,
                writer=writer,
            ),
            graph=graph,
            nodes=nodes,
            name=name,
        )

    def compile_request(self, request: Request) -> Program:
        """Returns a program for a graph that another process captured. Raises as `Farm.compile_request`."""
        return self._compile_request(request, self._runtime.encode_request(request, is_guarded=False), begun=None)

    def begin_request(self, request: Request) -> Callable[[], Program]:
        """Begins to fetch the artifact of a graph that another process captured, if it is stored. Never waits.

        Args:
            request: the graph. Dynamo checks before each call what was found of its sizes when it was captured.

        Returns:
            What returns the program. Raises as `compile_request`, which it is otherwise.

        Raises:
            Bypass: as `compile_request`.
        """
        encoded = self._runtime.encode_request(request, is_guarded=True)
        begun = self._attempts.begin(encoded)
        return lambda: self._compile_request(request, encoded, begun=begun)

    def _compile_request(self, request: Request, encoded: Encoded, *, begun: Future[Delivery] | None) -> Program:
        graph = self._runtime.local_graph_of_request(encoded)
        return self._compile(lambda _: encoded, graph=graph, nodes=len(request.job.graph.nodes), begun=begun)

    def _needs_plain_graphs(self, graph_module: Any, example_inputs: Sequence[Any]) -> bool:
        # A torch that cannot tell is one that the encoder will stumble over.
        with suppress(ImportError, AttributeError):
            return self._runtime.needs_plain_graphs(graph_module, example_inputs)
        return False

    def _compile_parts(
        self, graph_module: Any, example_inputs: Sequence[Any], *, whole: Whole, asked: _Asked
    ) -> Program:
        def part_of(plain: PlainGraph) -> Part:
            return Part(
                encode=lambda writer: self._encode(
                    lambda: self._runtime.encode_plain(plain, options=asked.options()),
                    asked=asked.arguments,
                    writer=writer,
                ),
                graph=self._runtime.local_graph(plain.graph_module, plain.inputs, options=asked.options),
            )

        return self._parts.compile(
            whole,
            compile_plain_graphs=lambda compile_plain: self._runtime.compile_plain_graphs(
                graph_module, example_inputs, options=asked.options(), compile_plain=compile_plain
            ),
            part_of=part_of,
        )

    def _compile(
        self,
        encode: Encode,
        *,
        graph: LocalGraph,
        nodes: int,
        name: str = "",
        begun: Future[Delivery] | None = None,
    ) -> Program:
        writer = self._dependencies.ledger.open(name=name, nodes=nodes, clock=self._dependencies.clock)
        try:
            return self._attempts.serve(encode, graph=graph, writer=writer, begun=begun)
        except Unserved as unserved:
            program = self._resorts.take(graph, writer=writer, defect=unserved.defect)
            return self._attempts.savable(program, unserved.encoded)
        except Exception as error:
            if is_for_dynamo(error):
                writer.discard()
            raise
        finally:
            self._reporter.report(writer.record)

    def _encode(self, encode: Callable[[], Encoded], *, asked: CompileOptions, writer: RecordWriter) -> Encoded:
        with writer.step("encode"):
            try:
                encoded = encode()
            except Exception as error:
                raise_interruption(error)
                if not is_for_dynamo(error):
                    self._recorder.note_bypass(error, record=writer.record)
                raise
            arguments = self._runtime.describe_call(mode=asked.mode, options=asked.options)
            self._recorder.note_request(encoded, arguments=arguments, record=writer.record)
        return encoded
