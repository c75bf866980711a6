"""Reports of clients on the outcomes of their graphs. They become metrics, unverified, and decide nothing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.compile_service_pb2 import GraphOutcome, GraphReport

_MOST_GRAPHS = 1000
# Reasons come from strangers, and each is a time series for whoever reads the figures.
_REASON = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MOST_REASONS = 100
_OTHER = "other"
_LONGEST_SECONDS = 7 * 86400.0


class Reports:
    """Sums up the reports of clients.

    Attributes:
        graphs: how many by outcome ("fallback") and reason ("unreachable"; empty for those from the farm).
        uncompiled: those that run as they are.
        self_checks: comparisons with uncompiled graphs, by what they found ("same", "differs", "skipped").
        spent_seconds, avoided_seconds, local_seconds: as in compilefarm.v1.GraphReport.
    """

    def __init__(self) -> None:
        self.graphs: Counter[tuple[str, str]] = Counter()
        self.uncompiled = 0
        self.self_checks: Counter[str] = Counter()
        self.spent_seconds = 0.0
        self.avoided_seconds = 0.0
        self.local_seconds = 0.0
        self._reasons: set[str] = set()

    def add(self, graphs: Sequence[GraphReport]) -> None:
        """Takes note of graphs: of all of them, or of none.

        Raises:
            InvalidRequest: they are too many, or one contradicts itself.
        """
        if len(graphs) > _MOST_GRAPHS:
            raise InvalidRequest(f"{len(graphs)} graphs in one report: at most {_MOST_GRAPHS} are allowed")
        for graph in graphs:
            _check(graph)
        for graph in graphs:
            self.graphs[_word(graph.outcome), self._reason(graph.reason)] += 1
            self.uncompiled += graph.uncompiled
            self.spent_seconds += graph.spent_seconds
            self.avoided_seconds += graph.avoided_seconds
            self.local_seconds += graph.local_seconds

    def count(self, outcome: str) -> int:
        """Graphs of one outcome."""
        return sum(count for (word, _), count in self.graphs.items() if word == outcome)

    def _reason(self, text: str) -> str:
        if not text or text in self._reasons:
            return text
        if _REASON.fullmatch(text) is None or len(self._reasons) >= _MOST_REASONS:
            return _OTHER
        self._reasons.add(text)
        return text


def _check(graph: GraphReport) -> None:
    if graph.outcome not in GraphOutcome.values() or graph.outcome == GraphOutcome.GRAPH_OUTCOME_UNSPECIFIED:
        raise InvalidRequest(f"outcome {graph.outcome} of a graph is not known here: upgrade the farm first")
    for seconds in (graph.spent_seconds, graph.avoided_seconds, graph.local_seconds):
        if not (math.isfinite(seconds) and 0 <= seconds <= _LONGEST_SECONDS):
            raise InvalidRequest(f"a graph cannot have taken {seconds} s")


def _word(outcome: GraphOutcome.ValueType) -> str:
    return GraphOutcome.Name(outcome).removeprefix("GRAPH_OUTCOME_").lower()
