"""Programs for graphs with tensor subclasses: the farm serves the graphs of plain tensors that torch makes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compilefarm.client.attempts import Attempts, Encode, Unserved
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import CompileFailed
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program
from compilefarm.client.recorder import GraphRecorder, untraceable
from compilefarm.client.records import RecordWriter
from compilefarm.client.reports import Reporter
from compilefarm.client.resorts import Resorts
from compilefarm.core.errors import FarmError
from compilefarm.core.interruptions import raise_interruption
from compilefarm.graph.bypass import Bypass

if TYPE_CHECKING:
    from compilefarm.graph.plain_graphs import PlainGraph

# Has torch make the plain graphs, and each compiled by what it is given; returns what takes the place of the whole.
CompilePlainGraphs = Callable[[Callable[["PlainGraph"], Program]], Program]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A graph with tensor subclasses.

    Attributes:
        graph: as this process can compile or run it without a farm.
        nodes: how many it has.
        name: of torch.compile(name=...).
    """

    graph: LocalGraph
    nodes: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A plain graph that another one amounts to.

    Attributes:
        encode: makes a job of it.
        graph: as this process can run it without a farm.
    """

    encode: Encode
    graph: LocalGraph


class PartsCompiler:
    """Turns graphs with tensor subclasses into programs: each has those of the farm for all that it amounts to, or
    none: what is compiled here is compiled as it would be without a farm.

    Args:
        dependencies: time, and where graphs are noted.
        attempts: asks the farm.
        resorts: what this process does without the farm.
        recorder: takes note of what cannot be asked.
        reporter: tells the farm what became of graphs.
    """

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        attempts: Attempts,
        resorts: Resorts,
        recorder: GraphRecorder,
        reporter: Reporter,
    ) -> None:
        self._dependencies = dependencies
        self._attempts = attempts
        self._resorts = resorts
        self._recorder = recorder
        self._reporter = reporter

    def compile(
        self, whole: Whole, *, compile_plain_graphs: CompilePlainGraphs, part_of: Callable[[PlainGraph], Part]
    ) -> Program:
        """Returns a program for a graph.

        Args:
            whole: the graph.
            compile_plain_graphs: has torch make the plain graphs.
            part_of: says how one of them is compiled and run.

        Raises:
            As `Farm.backend`.
        """
        writers: list[RecordWriter] = []

        def compile_plain(plain: PlainGraph) -> Program:
            writers.append(self._open(nodes=len(plain.graph_module.graph.nodes), name=f"{whole.name} {plain.role}"))
            part = part_of(plain)
            return self._serve(part, writer=writers[-1])

        try:
            return self._attempts.savable(compile_plain_graphs(compile_plain), None)
        except Unserved as unserved:
            return self._resort(whole, writers=writers, defect=unserved.defect)
        except (Bypass, CompileFailed, FarmError):
            raise
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            writers.append(self._open(nodes=whole.nodes, name=whole.name))
            bypass = untraceable(error)
            self._recorder.note_bypass(bypass, record=writers[-1].record)
            if self._attempts.settle(writers[-1], "bypass", reason=bypass.reason, message=str(bypass)):
                raise bypass from error
            return self._resort(whole, writers=writers)

    def _open(self, *, nodes: int, name: str) -> RecordWriter:
        return self._dependencies.ledger.open(name=name.strip(), nodes=nodes, clock=self._dependencies.clock)

    def _serve(self, part: Part, *, writer: RecordWriter) -> Program:
        try:
            return self._attempts.serve(part.encode, graph=part.graph, writer=writer)
        finally:
            self._reporter.report(writer.record)

    def _resort(self, whole: Whole, *, writers: Sequence[RecordWriter], defect: Exception | None = None) -> Program:
        *served, last = writers
        program = self._resorts.take(whole.graph, writer=last, defect=defect)
        record = last.record
        for writer in served:
            if record.outcome is not None:
                writer.close(
                    record.outcome, reason=record.reason, message=f"with graph {record.number}: {record.message}"
                )
            writer.resort_to(record.resort, obstacle=record.obstacle)
        return self._attempts.savable(program, None)
