"""The graph of a check as eager runs it, in its own precision and in a higher one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.inputs import move_by_last_bits
from compilefarm.graph.targets import nodes_of
from compilefarm.graph.tolerances import coarsest, epsilon_of
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.checkpoints import keep_random_state
from compilefarm.worker.choices import Choice, alike, find_choices, watching
from compilefarm.worker.comparison import Comparison, differing_elements
from compilefarm.worker.narrowing import Narrowed, find_narrowed
from compilefarm.worker.reference import find_reference
from compilefarm.worker.results import Results, run
from compilefarm.worker.seeds import SEED
from compilefarm.worker.synthetic import inputs_of
from compilefarm.worker.ties import LastFirst, ranks

# Of the first inputs that are tried; it differs from that of a compile.
INPUT_SEED = 1

# Seeds by which floats are moved to find out which integers hang on their last bits.
_MOVES = (1, 2, 3)


class Eager:
    """What an artifact is compared with. Runs that only some comparisons need are made when they are asked for, once.

    Args:
        decoded: the graph.
        job: says what its inputs look like, and how large they are.
        attempt: at inputs that it takes, as in `inputs_of`.
        first_seed: of the first attempt.
    """

    def __init__(self, decoded: DecodedJob, job: Job, *, attempt: int = 0, first_seed: int = INPUT_SEED) -> None:
        # Dynamo flattens outputs; the decoded graph returns them as they were captured.
        self.decoded = decoded
        self.program = decoded.graph_module
        keep_random_state(self.program)
        # Graphs may write to their inputs, so that each run has its own.
        self.inputs = inputs_of(job, decoded, first_seed=first_seed, attempt=attempt)
        self._inputs_seed = first_seed + attempt
        self.written = decoded.written_inputs
        self.inside = _coarsest_inside(decoded.graph_module)

    def run(self, program: Callable[..., Any] | None = None, *, seed: int = SEED) -> dict[str, Any]:
        """Results of the graph, or of another program, on inputs of its own."""
        return run(program or self.program, self.inputs(), seed=seed, written=self.written)

    def comparison(self, found: Verification, *, random: Set[str] = frozenset()) -> Comparison:
        """Compares with what eager gives.

        Args:
            found: is told how far apart they were.
            random: names of results that differ from seed to seed, for which there is no reference.
        """
        return Comparison(
            inputs_seed=self._inputs_seed,
            found=found,
            inside=self.inside,
            moved=self.moved,
            narrowed=self.narrowed,
            unordered=self.unordered,
            alike=lambda name, ours, theirs: None if name in random else self.alike(name, ours, theirs),
            reference=lambda: {name: value for name, value in (self.reference() or {}).items() if name not in random},
        )

    @functools.cached_property
    def _moved(self) -> Sequence[Results]:
        results: list[Results] = []
        narrowed = self.narrowed()
        dtype = coarsest(each for each in (self.inside, narrowed and narrowed.dtype) if each is not None)
        epsilon = epsilon_of(dtype) if dtype is not None else 0.0
        for seed in _MOVES:
            given = self.inputs()
            move_by_last_bits(given, seed=seed, epsilon=epsilon)
            try:
                results.append(run(self.program, given, seed=SEED, written=self.written))
            except Exception:  # noqa: BLE001 - whatever eager raises, the graph does not take these inputs
                break
        return results

    def moved(self) -> Sequence[Results]:
        """Results with all floats of its inputs moved by a few last bits."""
        return self._moved

    @functools.cached_property
    def _reordered(self) -> tuple[Results, Sequence[Results]]:
        """Results, and others in which equal elements, or nearly equal ones, come in another order."""
        with LastFirst():
            last_first = self.run()
        return self.run(), [last_first, *self.moved()]

    def unordered(self, name: str) -> torch.Tensor | None:
        """Which elements of a result hang on which of equal elements, or nearly equal ones, is the first."""
        if not ranks(self.program):
            return None
        results, others = self._reordered
        return differing_elements(results[name], [other[name] for other in others], inside=self.inside)

    @functools.cached_property
    def _narrowed(self) -> Narrowed | None:
        return find_narrowed(self.run)

    def narrowed(self) -> Narrowed | None:
        """Results with products in the narrowest precision that is allowed; None where that changes nothing."""
        return self._narrowed

    @functools.cached_property
    def _reference(self) -> Results | None:
        return self._find_reference(self.program)

    def _find_reference(self, program: Callable[..., Any]) -> Results | None:
        if self.inside is None or self.inside is torch.float64:
            return None
        return find_reference(
            lambda given: run(program, given, seed=SEED, written=self.written), self.inputs, inside=self.inside
        )

    def alike(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor | None:
        """Which elements of a result that picks among values are as good as eager's; None if it is no such result."""
        choice = self._choices.get(name)
        if choice is None or self.inside is None:
            return None
        eager, reference = self._picked_from
        place = f"output {list(self._choices).index(name)}"
        if reference is None or any(each[place].shape != reference[place].shape for each in eager):
            return None
        values = [each[place] for each in eager]
        return alike(ours, theirs, choice=choice, eager=values, reference=reference[place], inside=self.inside)

    @functools.cached_property
    def _choices(self) -> Mapping[str, Choice]:
        return find_choices(self.program)

    @functools.cached_property
    def _picked_from(self) -> tuple[Sequence[Results], Results | None]:
        watched = watching(self.program, self._choices)
        narrowed = find_narrowed(lambda: self.run(watched))
        eager = [self.run(watched), *([narrowed.results] if narrowed is not None else [])]
        return eager, self._find_reference(watched)

    def reference(self) -> Results | None:
        """Results in high precision; None where there are none."""
        return self._reference


def _coarsest_inside(graph_module: torch.fx.GraphModule) -> torch.dtype | None:
    """The coarsest floats that a graph computes, such as those of autocast."""
    values = (node.meta.get("example_value") for node in nodes_of(graph_module))
    return coarsest(value.dtype for value in values if isinstance(value, torch.Tensor))
