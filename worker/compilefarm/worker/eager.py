"""Runs the uncompiled graph of a verification: as it is, perturbed, and in high precision."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch

from compilefarm.graph.decode import DecodedJob
from compilefarm.graph.targets import nodes_of
from compilefarm.graph.tolerances import coarsest, epsilon_of
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.believed_values import refusing_values_outside
from compilefarm.worker.checkpoints import run_checkpoints_as_compiled
from compilefarm.worker.comparison import Comparison, differing_elements
from compilefarm.worker.exhaustion import find_exhausted
from compilefarm.worker.inputs import move_by_last_bits
from compilefarm.worker.large_sums import find_with_large_sums
from compilefarm.worker.narrowing import Narrowed, find_narrowed
from compilefarm.worker.reference import find_reference
from compilefarm.worker.regions import call_all_regions
from compilefarm.worker.results import Results, run
from compilefarm.worker.seeds import SEED
from compilefarm.worker.selections import Selection, are_as_good, find_selections, with_selected_values
from compilefarm.worker.synthetic import inputs_of
from compilefarm.worker.ties import LastFirst, has_ranking
from compilefarm.worker.uninitialized import find_unwritten

# Of the first inputs that are tried; it differs from that of a compile.
INPUT_SEED = 1

# Seeds by which floats are perturbed to find out which integers hang on their last bits.
_PERTURBATION_SEEDS = (1, 2, 3)
# The same for floats, which a step may change by much: of narrow ones a sixteenth is moved by one last bit, which is
# about as much as one more rounding of all.
_NUDGE_SEEDS = (11, 12, 13, 14)
_NUDGE_OF_NARROW = 1 / 16


class Eager:
    """Results of the uncompiled graph, with which an artifact is compared. Each kind of run is made once, when it is
    needed.

    Args:
        decoded: the graph.
        job: says what its inputs look like, and how large they are.
        attempt: number of the attempt to find inputs that the graph takes, as in `inputs_of`.
        first_seed: seed of the inputs of the first attempt.
    """

    def __init__(self, decoded: DecodedJob, job: Job, *, attempt: int = 0, first_seed: int = INPUT_SEED) -> None:
        # Dynamo flattens outputs; the decoded graph returns them as they were captured.
        self.decoded = decoded
        self.program = decoded.graph_module
        run_checkpoints_as_compiled(self.program)
        call_all_regions(self.program)
        # Graphs may write to their inputs, so that each run has its own.
        self.inputs = inputs_of(job, decoded, first_seed=first_seed, attempt=attempt)
        self._inputs_seed = first_seed + attempt
        self.written = decoded.written_inputs
        self.inside = _coarsest_inside(decoded.graph_module)
        self._nudged: list[tuple[Results, torch.dtype]] = []

    def run(self, program: Callable[..., Any] | None = None, *, seed: int = SEED) -> dict[str, Any]:
        """Returns the results of the graph, or of another program, on a fresh copy of the inputs."""
        if program is not None:
            return run(program, self.inputs(), seed=seed, written=self.written)
        with refusing_values_outside(self.program):
            return run(self.program, self.inputs(), seed=seed, written=self.written)

    def comparison(self, found: Verification, *, random: Set[str] = frozenset()) -> Comparison:
        """Returns a comparison with the results of eager.

        Args:
            found: receives the measured differences.
            random: names of results that differ from seed to seed, for which there is no reference.
        """
        return Comparison(
            inputs_seed=self._inputs_seed,
            unwritten=self.unwritten,
            found=found,
            inside=self.inside,
            perturbed=self.perturbed,
            narrowed=self.narrowed,
            with_large_sums=self.with_large_sums,
            nudged=self.nudged,
            unordered=self.unordered,
            as_good=lambda name, ours, theirs: None if name in random else self.as_good(name, ours, theirs),
            reference=lambda: {name: value for name, value in (self.reference() or {}).items() if name not in random},
        )

    @functools.cached_property
    def unwritten(self) -> Mapping[str, torch.Tensor]:
        """A mask of the elements that depend on memory which nobody wrote to, by the names of results."""
        return find_unwritten(self.program, self.run)

    @functools.cached_property
    def _precision(self) -> torch.dtype | None:
        """The coarsest dtype that the graph may compute in: that of its floats, or of narrower products."""
        narrowed = self.narrowed()
        return coarsest(each for each in (self.inside, narrowed and narrowed.dtype) if each is not None)

    @functools.cached_property
    def _perturbed(self) -> Sequence[Results]:
        dtype = self._precision
        epsilon = epsilon_of(dtype) if dtype is not None else 0.0
        return list(self._moved(partial(move_by_last_bits, epsilon=epsilon), seeds=_PERTURBATION_SEEDS))

    def _moved(self, move: Callable[..., None], *, seeds: Sequence[int]) -> Iterator[Results]:
        """Yields results for inputs that were moved, until the graph does not take them."""
        for seed in seeds:
            given = self.inputs()
            move(given, seed=seed)
            try:
                results = run(self.program, given, seed=SEED, written=self.written)
            except Exception as error:
                if find_exhausted(error) is not None:
                    raise
                # Whatever else eager raises, the graph does not take these inputs.
                return
            yield results

    @functools.cached_property
    def _nudges(self) -> Iterator[tuple[Results, torch.dtype]]:
        dtype = self._precision
        if dtype is None:
            return iter(())
        nudge = partial(move_by_last_bits, epsilon=epsilon_of(dtype))
        if dtype not in (torch.float32, torch.float64):
            nudge = partial(nudge, last_bits=_NUDGE_OF_NARROW)
        return ((results, dtype) for results in self._moved(nudge, seeds=_NUDGE_SEEDS))

    def nudged(self) -> Iterator[tuple[Results, torch.dtype]]:
        """Yields results for inputs whose floats were moved by about a rounding, several times, and its dtype.

        Where a result hangs on which side of a step an element lies, as those of an activation's derivative, of a
        largest element or of a choice among experts, one that is rounded otherwise is as far off as these are.
        """
        # Each is run when it is first asked for: all gradients of a large model are large.
        for number in itertools.count():
            if number == len(self._nudged) and (further := next(self._nudges, None)) is not None:
                self._nudged.append(further)
            if number == len(self._nudged):
                return
            yield self._nudged[number]

    def perturbed(self) -> Sequence[Results]:
        """Returns results for inputs whose floats were moved by a few last bits, several times."""
        return self._perturbed

    @functools.cached_property
    def _reordered(self) -> tuple[Results, Sequence[Results]]:
        """Returns results, and others in which equal and nearly equal elements come in another order."""
        with LastFirst():
            last_first = self.run()
        return self.run(), [last_first, *self.perturbed()]

    def unordered(self, name: str) -> torch.Tensor | None:
        """Returns a mask of the elements that depend on the order of equal and nearly equal elements, or None."""
        if not has_ranking(self.program):
            return None
        results, others = self._reordered
        return differing_elements(results[name], [other[name] for other in others], inside=self.inside)

    @functools.cached_property
    def _narrowed(self) -> Narrowed | None:
        return find_narrowed(self.run)

    def narrowed(self) -> Narrowed | None:
        """Returns results with products in the narrowest precision that is allowed; None if that changes nothing."""
        return self._narrowed

    @functools.cached_property
    def _with_large_sums(self) -> Results | None:
        return find_with_large_sums(self.run)

    def with_large_sums(self) -> Results | None:
        """Returns results with large sums as loops round them; None if there are none."""
        return self._with_large_sums

    @functools.cached_property
    def _reference(self) -> Results | None:
        return self._find_reference(self.program)

    def _find_reference(self, program: Callable[..., Any]) -> Results | None:
        if self.inside is None or self.inside is torch.float64:
            return None
        return find_reference(
            lambda given: run(program, given, seed=SEED, written=self.written), self.inputs, inside=self.inside
        )

    def as_good(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor | None:
        """Returns a mask of the indices that are as good as eager's; None if the result is no selection."""
        selection = self._selections.get(name)
        if selection is None or self.inside is None:
            return None
        eager, reference = self._picked_from
        output = f"output {list(self._selections).index(name)}"
        if reference is None or any(each[output].shape != reference[output].shape for each in eager):
            return None
        values = [each[output] for each in eager]
        return are_as_good(
            ours, theirs, selection=selection, eager=values, reference=reference[output], inside=self.inside
        )

    @functools.cached_property
    def _selections(self) -> Mapping[str, Selection]:
        return find_selections(self.program)

    @functools.cached_property
    def _picked_from(self) -> tuple[Sequence[Results], Results | None]:
        watched = with_selected_values(self.program, self._selections)
        narrowed = find_narrowed(lambda: self.run(watched))
        eager = [self.run(watched), *([narrowed.results] if narrowed is not None else [])]
        return eager, self._find_reference(watched)

    def reference(self) -> Results | None:
        """Returns results in high precision; None if the graph has none."""
        return self._reference


def _coarsest_inside(graph_module: torch.fx.GraphModule) -> torch.dtype | None:
    """Returns the coarsest dtype of floats inside a graph, such as that of autocast."""
    values = (node.meta.get("example_value") for node in nodes_of(graph_module))
    return coarsest(value.dtype for value in values if isinstance(value, torch.Tensor))
