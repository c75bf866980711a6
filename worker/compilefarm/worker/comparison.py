"""Compares results of an artifact with those of eager.

Floating point and complex numbers that differ by no more than a few roundings are equal. Where they differ by more,
both are held to a reference in high precision: the artifact may be a few times as far from it as eager is. Where there
is no reference, they may be off by a share of the largest magnitude, by the coarsest dtype on the way to them.

Where products of float32 may be narrower, as in TF32, eager counts in both cases as if its own were, where it is
nearer without that. So it does where sums of many elements may be rounded more than its own are, and as it computes
where its inputs were moved by a last bit: near a step, as activations have, one of them decides by luck.

Elements that depend on which of several equal elements a sort gives first have no one order, and are compared sorted.

Elements that depend on memory which nobody wrote to are not compared.

Integers and booleans must be equal, except where the last bit of a float decides. An index that an argmax or a sort
gives may differ where the reference says that both values are nearly equal. Any other element may differ where eager
itself gives another one for inputs that were perturbed by a few last bits, and by no more than that changes any
element. Of the rest, one element in a thousand may differ, since perturbations find such elements by trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compilefarm.graph.tolerances import coarsest, epsilon_of, tolerance_of
from compilefarm.v1.job_pb2 import Refusal
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.narrowing import Narrowed
from compilefarm.worker.precision import Distance, allowed_distance
from compilefarm.worker.results import Results, is_tracked

# Differences of so many of the smallest steps at the largest magnitude need no reference: additions in another order.
_CLEAR_STEPS = {torch.float64: 1e4, torch.float32: 32.0}
_CLEAR_STEPS_OF_NARROW = 1.0
_LEAST_MAGNITUDE = 1e-3
# One integer of so many may differ although no perturbation changed it.
_ELEMENTS_PER_OUTLIER = 1000
# What a step changes is no rounding: of float32 it may not be sixteen times as much, as functions of vectors are.
_TIMES_NUDGED = 3.0
_NOT_COMPARED = frozenset({torch.uint16, torch.uint32, torch.uint64})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounded:
    """Elements of a result as eager could have rounded them.

    Attributes:
        elements: of the result.
        inside: the coarsest dtype on the way to them.
        times: how many times as far from the reference an artifact may be; None for what `inside` says.
    """

    elements: torch.Tensor
    inside: torch.dtype
    times: float | None = None


class VerificationFailed(Exception):
    """The artifact does not do what the graph does, or is not finished work.

    Attributes:
        refusal: how far it is from what it should be, where that was found out.
    """

    def __init__(self, message: str, *, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compares results with those of eager.

    Attributes:
        inputs_seed: seed of the inputs of both, for reports.
        unwritten: of each result (its name) that has any, a mask of the elements that depend on memory which nobody
            wrote to.
        unwritten_positions: of the result that is compared.
        sorted_positions: of elements that are compared sorted; a mask.
        found: receives the measured differences.
        inside: the coarsest dtype that the graph computes in; None where nothing floats.
        perturbed: gives results of eager for inputs that were perturbed by a few last bits. Called where integers
            differ.
        reference: gives results in high precision, if it can. Called where floats differ by more than a few roundings.
        unordered: tells which elements of a result (its name) come in any order, if it can. Called where some differ;
            these are compared sorted.
        narrowed: gives results of eager with the narrowest products that are allowed, if there are any. Called where
            floats differ by too much without it.
        with_large_sums: gives results of eager with large sums as loops round them, if there are any. Called where
            floats differ by too much without it.
        nudged: gives results of eager for inputs that were moved by about a rounding, each with the dtype of that.
            Called where floats are too far from a reference without it.
        as_good: tells which integers of a result (its name, ours, eager's) are as good as eager's, if it can. Called
            where integers differ.
    """

    inputs_seed: int = 0
    unwritten: Mapping[str, torch.Tensor] = field(default_factory=dict)
    unwritten_positions: torch.Tensor | None = None
    sorted_positions: torch.Tensor | None = None
    found: Verification = field(default_factory=Verification)
    inside: torch.dtype | None = None
    perturbed: Callable[[], Sequence[Results]] = tuple
    reference: Callable[[], Results | None] = lambda: None
    unordered: Callable[[str], torch.Tensor | None] = lambda _name: None
    narrowed: Callable[[], Narrowed | None] = lambda: None
    with_large_sums: Callable[[], Results | None] = lambda: None
    nudged: Callable[[], Iterable[tuple[Results, torch.dtype]]] = tuple
    as_good: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor | None] = lambda _name, _ours, _theirs: None

    def compare(self, ours: Results, theirs: Results, *, without: Set[str] = frozenset()) -> None:
        """Compares all results but those named `without`.

        Raises:
            VerificationFailed: they are too far apart.
        """
        if ours.keys() != theirs.keys():
            # Only a list of them that is too short or too long, or gradients that nobody expects, can lead here.
            differing = ", ".join(sorted(ours.keys() ^ theirs.keys()))
            raise VerificationFailed(f"the artifact or eager alone has {differing}")
        for name, expected in theirs.items():
            _require_gradients_alike(name, ours[name], expected)
            if isinstance(expected, torch.Tensor) and name not in without:
                if not isinstance(ours[name], torch.Tensor) or _kind(ours[name]) != _kind(expected):
                    raise VerificationFailed(f"{name} is {_kind(ours[name])} instead of {_kind(expected)}")
                self._of(name)._compare_written(name, _dense(ours[name]), _dense(expected))

    def agrees(self, ours: Results, theirs: Results, *, name: str) -> bool:
        """Returns whether the results of one name are near enough."""
        try:
            self.compare({name: ours[name]}, {name: theirs[name]})
        except VerificationFailed:
            return False
        return True

    def _of(self, name: str) -> Comparison:
        return replace(self, unwritten_positions=self.unwritten.get(name))

    def _compare_written(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        self._compare_in_order(name, self._arranged(ours), self._arranged(theirs))

    def _compare_in_order(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        # What was found of a comparison that fails is not kept.
        found = Verification()
        found.CopyFrom(self.found)
        try:
            replace(self, found=found)._compare_tensor(name, ours, theirs)
        except VerificationFailed:
            can_sort = not theirs.is_complex() and theirs.dtype not in _NOT_COMPARED
            positions = self.unordered(name) if self.sorted_positions is None and can_sort else None
            if positions is None or positions.shape != theirs.shape:
                raise
            found.CopyFrom(self.found)
            sorting = replace(self, found=found, sorted_positions=positions)
            sorting._compare_tensor(name, sorting._arranged(ours), sorting._arranged(theirs))
        self.found.CopyFrom(found)

    def _compare_tensor(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        if theirs.numel() == 0:
            return
        if theirs.is_floating_point() or theirs.is_complex():
            self._compare_floats(name, ours, theirs)
        else:
            self._compare_integers(name, ours, theirs)

    def _compare_floats(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        dtype = _real(theirs).dtype
        ours, theirs = _real(ours).double(), _real(theirs).double()
        magnitude = _largest(theirs)
        if torch.equal(ours.isfinite(), theirs.isfinite()):
            difference = _largest_difference(ours[ours.isfinite()], theirs[theirs.isfinite()])
            clear = _clear_share(dtype) * magnitude
            if difference <= clear or (reference := self._reference_of(name, theirs)) is None:
                self._hold_to_eager(name, difference, magnitude, clear=clear, dtype=dtype)
                return
        elif (reference := self._reference_of(name, theirs)) is None:
            raise VerificationFailed(f"{name} is not finite where eager is, or the other way round")
        self._hold_to_reference(name, ours, theirs, reference, dtype=dtype)

    def _reference_of(self, name: str, theirs: torch.Tensor) -> torch.Tensor | None:
        found = _like(theirs, (self.reference() or {}).get(name))
        return None if found is None else self._arranged(found)

    def _hold_to_eager(
        self, name: str, difference: float, magnitude: float, *, clear: float, dtype: torch.dtype
    ) -> None:
        found = self.found
        found.largest_difference = max(found.largest_difference, difference)
        if difference <= clear:
            found.absolute_tolerance = max(found.absolute_tolerance, clear)
            return
        tolerance = max(tolerance_of(each) for each in (dtype, self.inside or dtype))
        if difference > tolerance * max(magnitude, _LEAST_MAGNITUDE) and (narrowed := self.narrowed()) is not None:
            tolerance = max(tolerance, tolerance_of(narrowed.dtype))
        allowed = tolerance * max(magnitude, _LEAST_MAGNITUDE)
        found.relative_tolerance = max(found.relative_tolerance, tolerance)
        found.absolute_tolerance = max(found.absolute_tolerance, allowed)
        if difference > allowed:
            raise VerificationFailed(
                f"{name} differs from eager by {difference:.3g} where values reach {magnitude:.3g}; "
                f"{tolerance:.0e} of that is allowed, and there is no reference in higher precision",
                refusal=Refusal(result=name, error=difference, allowed_error=allowed, inputs_seed=self.inputs_seed),
            )

    def _hold_to_reference(
        self, name: str, ours: torch.Tensor, theirs: torch.Tensor, reference: torch.Tensor, *, dtype: torch.dtype
    ) -> None:
        """Compares with the reference. Where eager is finite the artifact has to be finite, too."""
        finite = theirs.isfinite()
        if not bool((ours.isfinite() | ~finite).all()):
            raise VerificationFailed(f"{name} is not finite where eager is")
        compared = finite & reference.isfinite()
        if not bool(compared.any()):
            return
        ours, theirs, exact = ours[compared], theirs[compared], reference[compared]
        our_distance, their_distance = Distance.between(ours, exact), Distance.between(theirs, exact)
        inside = coarsest((dtype, self.inside or dtype)) or dtype
        allowed = _allowed(their_distance, exact, dtype=dtype, inside=inside)
        otherwise = self._rounded_otherwise(name, compared, inside=inside)
        while not our_distance.is_within(allowed) and (rounded := next(otherwise, None)) is not None:
            allowed = allowed.or_larger(
                _allowed(
                    Distance.between(rounded.elements, exact),
                    exact,
                    dtype=dtype,
                    inside=rounded.inside,
                    times=rounded.times,
                )
            )
        difference = _largest_difference(ours, theirs)
        self._note(difference, our_distance, their_distance, allowed)
        if not our_distance.is_within(allowed):
            raise VerificationFailed(
                f"{name} differs from eager by {difference:.3g}, and from a reference in high precision by up to "
                f"{our_distance.largest:.3g} (root mean square {our_distance.typical:.3g}); eager does so by "
                f"{their_distance.largest:.3g} ({their_distance.typical:.3g}), and {allowed.largest:.3g} "
                f"({allowed.typical:.3g}) is allowed",
                refusal=Refusal(
                    result=name,
                    error=our_distance.typical,
                    eager_error=their_distance.typical,
                    allowed_error=allowed.typical,
                    inputs_seed=self.inputs_seed,
                ),
            )

    def _arranged(self, elements: torch.Tensor) -> torch.Tensor:
        if self.sorted_positions is None and self.unwritten_positions is None:
            return elements
        arranged = elements.clone()
        if self.unwritten_positions is not None:
            arranged[self.unwritten_positions] = 0
        if self.sorted_positions is not None:
            arranged[self.sorted_positions] = arranged[self.sorted_positions].sort().values
        return arranged

    def _rounded_otherwise(self, name: str, compared: torch.Tensor, *, inside: torch.dtype) -> Iterator[_Rounded]:
        """Yields elements of the result as eager could have rounded them."""
        if (narrowed := self.narrowed()) is not None:
            for elements in self._elements(narrowed.results, name, compared):
                yield _Rounded(elements=elements, inside=narrowed.dtype)
        if (results := self.with_large_sums()) is not None:
            for elements in self._elements(results, name, compared):
                yield _Rounded(elements=elements, inside=inside)
        for results, dtype in self.nudged():
            for elements in self._elements(results, name, compared):
                yield _Rounded(elements=elements, inside=dtype, times=_TIMES_NUDGED)

    def _elements(self, results: Results, name: str, compared: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields those elements of a result that are compared, unless it has others or one is not finite."""
        result = _like(compared, results.get(name))
        if result is not None and bool(result.isfinite().all()):
            yield self._arranged(result)[compared]

    def _note(self, difference: float, ours: Distance, theirs: Distance, allowed: Distance) -> None:
        found = self.found
        found.largest_difference = max(found.largest_difference, difference)
        found.referenced += 1
        # Of the result that is nearest to what is allowed.
        if found.referenced == 1 or ours.typical * found.allowed_error > found.error * allowed.typical:
            found.error, found.eager_error, found.allowed_error = ours.typical, theirs.typical, allowed.typical

    def _compare_integers(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        if torch.equal(_integers(ours), _integers(theirs)):
            return
        as_good = self.as_good(name, ours, theirs)
        if as_good is not None:
            self._hold_selections(name, ours != theirs, as_good)
            return
        ours, theirs = _integers(ours), _integers(theirs)
        differing = ours != theirs
        count = int(differing.sum())
        if count == 0:
            return
        unsteady, largest_step = self._unsteady(name, theirs)
        outliers = int((differing & ~unsteady).sum())
        excused = differing & unsteady
        self.found.differing_integers += count
        too_far = _largest_difference(ours[excused], theirs[excused]) > largest_step
        if outliers > theirs.numel() // _ELEMENTS_PER_OUTLIER or too_far:
            raise VerificationFailed(
                f"{name} differs from eager in {count} of {theirs.numel()} elements, "
                f"{outliers} of which depend on no last bit of a float"
            )

    def _hold_selections(self, name: str, differing: torch.Tensor, as_good: torch.Tensor) -> None:
        count, wrong = int(differing.sum()), int((differing & ~as_good).sum())
        self.found.differing_integers += count
        if wrong > differing.numel() // _ELEMENTS_PER_OUTLIER:
            raise VerificationFailed(
                f"{name} differs from eager in {count} of {differing.numel()} elements, {wrong} of which pick what is "
                "not nearly equal"
            )

    def _unsteady(self, name: str, theirs: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Returns a mask of the elements that perturbed inputs change, and the largest change."""
        unsteady, largest_step = torch.zeros_like(theirs, dtype=torch.bool), 0.0
        for perturbed in self.perturbed():
            other = perturbed[name]
            # Their number may hang on the elements.
            if other.numel() == theirs.numel():
                other = _integers(self._arranged(other))
                unsteady |= other != theirs
                largest_step = max(largest_step, _largest_difference(other, theirs))
        return unsteady, largest_step


def differing_names(first: Results, second: Results) -> set[str]:
    """Names of tensors that are not the same to the last bit."""
    return {
        name
        for name, tensor in first.items()
        if isinstance(tensor, torch.Tensor) and not torch.equal(_plain(tensor), _plain(second[name]))
    }


def differing_positions(first: Results, second: Results) -> dict[str, torch.Tensor]:
    """A mask of the elements that are not the same to the last bit, for each tensor that has any; all of them where the
    number of elements is another one.
    """
    return {name: _differing(first[name], second[name]) for name in differing_names(first, second)}


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.shape != other.shape:
        return torch.ones_like(_dense(one), dtype=torch.bool)
    differing = _plain(one) != _plain(other)
    return differing.any(-1) if one.is_complex() else differing


def differing_elements(
    result: torch.Tensor, others: Sequence[torch.Tensor], *, inside: torch.dtype | None
) -> torch.Tensor | None:
    """Returns a mask of the elements that differ in other runs; None if none do, or if shapes differ."""
    theirs = _dense(result)
    if any(other.shape != theirs.shape for other in others) or theirs.numel() == 0:
        return None
    tolerance = 0.0
    if theirs.is_floating_point():
        tolerance = max(tolerance_of(each) for each in (theirs.dtype, inside or theirs.dtype)) * _largest(theirs)
    differing = [(_dense(other).double() - theirs.double()).abs() > tolerance for other in others]
    positions = torch.stack(differing).any(0)
    return positions if bool(positions.any()) else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that can be compared: NaN equals nothing, and types of eight bits compare nothing."""
    tensor = _real(_dense(tensor))
    wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize < torch.float32.itemsize else tensor
    return torch.nan_to_num(wide)


def _clear_share(dtype: torch.dtype) -> float:
    steps: float = _CLEAR_STEPS.get(dtype, _CLEAR_STEPS_OF_NARROW)
    return steps * epsilon_of(dtype)


def _allowed(
    theirs: Distance, exact: torch.Tensor, *, dtype: torch.dtype, inside: torch.dtype, times: float | None = None
) -> Distance:
    return allowed_distance(theirs, Distance.of(exact), elements=exact.numel(), dtype=dtype, inside=inside, times=times)


def _like(theirs: torch.Tensor, result: object) -> torch.Tensor | None:
    """A result of another run as float64; None where it has another shape, or there is none."""
    if not isinstance(result, torch.Tensor) or theirs.numel() == 0:
        return None
    found = _real(_dense(result)).double()
    return found if found.shape == theirs.shape else None


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose elements can be compared: torch compares no sparse ones."""
    plain = tensor.detach()
    return plain if plain.layout is torch.strided else plain.to_dense()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of floats."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in a row, in a type that torch can sort and compare."""
    flat = tensor.flatten()
    return flat.long() if flat.dtype in _NOT_COMPARED else flat


def _largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0


def _require_gradients_alike(name: str, ours: Any, theirs: Any) -> None:
    """Raises VerificationFailed if one of two results wants gradients and the other does not."""
    if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return
    if ours.requires_grad and not theirs.requires_grad:
        raise VerificationFailed(f"{name} wants gradients, and eager's does not")
    if is_tracked(theirs) and not ours.requires_grad:
        raise VerificationFailed(f"{name} wants no gradients, and eager's does")


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
