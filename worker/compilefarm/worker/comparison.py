"""How near results of an artifact must be to those of eager.

Floating point and complex numbers may be off by a share of the largest magnitude, by dtype. Integers and booleans must
be the same, except where a last bit of a float before them decides: an element may differ where eager itself gives
another once its floats are moved by a few last bits, and by no more than that moves any element. Of the others one in a
thousand may differ, since that is found out by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from compilefarm.v1.manifest_pb2 import Verification

Results = Mapping[str, Any]

# Largest difference allowed, as a share of the largest magnitude in the output. A wrong kernel is off by about all of
# it; another order of additions, or TF32 for float32, by much less.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 2e-2
_LEAST_MAGNITUDE = 1e-3
# One integer of so many may differ for no reason that was found.
_ELEMENTS_BY_STRAY = 1000
_NOT_COMPARED = frozenset({torch.uint16, torch.uint32, torch.uint64})


class VerificationFailed(Exception):
    """The artifact does not do what the graph does, or is not finished work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Holds results to those of eager.

    Attributes:
        is_ordered: whether they have one order; else they are compared sorted, too.
        found: is told how far they were apart.
        moved: gives results of eager with its floats moved by a few last bits. Called where integers differ.
    """

    is_ordered: bool
    found: Verification = field(default_factory=Verification)
    moved: Callable[[], Sequence[Results]] = tuple

    def compare(self, ours: Results, theirs: Results, *, without: Set[str] = frozenset()) -> None:
        """Compares all but those of some names.

        Raises:
            VerificationFailed: they are not near enough.
        """
        if ours.keys() != theirs.keys():
            # Only a list of them that is too short or too long, or gradients that nobody expects, can lead here.
            differing = ", ".join(sorted(ours.keys() ^ theirs.keys()))
            raise VerificationFailed(f"the artifact or eager alone has {differing}")
        for name, expected in theirs.items():
            if isinstance(expected, torch.Tensor) and name not in without:
                if not isinstance(ours[name], torch.Tensor) or _kind(ours[name]) != _kind(expected):
                    raise VerificationFailed(f"{name} is {_kind(ours[name])} instead of {_kind(expected)}")
                self._compare_tensor(name, ours[name].detach(), expected.detach())

    def agrees(self, ours: Results, theirs: Results, *, name: str) -> bool:
        """Whether those of one name are near enough."""
        try:
            self.compare({name: ours[name]}, {name: theirs[name]})
        except VerificationFailed:
            return False
        return True

    def _compare_tensor(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        if theirs.numel() == 0:
            return
        if theirs.is_complex():
            ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
        if theirs.is_floating_point():
            self._compare_floats(name, ours, theirs)
        else:
            self._compare_integers(name, ours, theirs)

    def _compare_floats(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        tolerance = _tolerance_of(theirs)
        ours, theirs = ours.double(), theirs.double()
        finite = theirs.isfinite()
        if not torch.equal(ours.isfinite(), finite):
            raise VerificationFailed(f"{name} is not finite where eager is, or the other way round")
        magnitude = theirs[finite].abs().max().item() if finite.any() else 0.0
        allowed = tolerance * max(magnitude, _LEAST_MAGNITUDE)
        difference = _largest_difference(ours[finite], theirs[finite])
        if not self.is_ordered and difference > allowed:
            difference = _largest_difference(ours[finite].sort().values, theirs[finite].sort().values)
        found = self.found
        found.largest_difference = max(found.largest_difference, difference)
        found.relative_tolerance = max(found.relative_tolerance, tolerance)
        found.absolute_tolerance = max(found.absolute_tolerance, allowed)
        if difference > allowed:
            raise VerificationFailed(
                f"{name} differs from eager by {difference:.3g} where values reach {magnitude:.3g}; "
                f"{tolerance:.0e} of that is allowed"
            )

    def _compare_integers(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        ours, theirs = _integers(ours), _integers(theirs)
        if not self.is_ordered and not torch.equal(ours, theirs):
            ours, theirs = ours.sort().values, theirs.sort().values
        differing = ours != theirs
        count = int(differing.sum())
        if count == 0:
            return
        unsteady, swing = self._unsteady(name, theirs)
        strays = int((differing & ~unsteady).sum())
        excused = differing & unsteady
        self.found.differing_integers += count
        if strays > theirs.numel() // _ELEMENTS_BY_STRAY or _largest_difference(ours[excused], theirs[excused]) > swing:
            raise VerificationFailed(
                f"{name} differs from eager in {count} of {theirs.numel()} elements, "
                f"{strays} of which hang on no last bit of a float"
            )

    def _unsteady(self, name: str, theirs: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Which elements eager gives differently once its floats are moved, and the largest step among them."""
        unsteady, swing = torch.zeros_like(theirs, dtype=torch.bool), 0.0
        for moved in self.moved():
            other = _integers(moved[name])
            # Their number may hang on the elements.
            if other.shape == theirs.shape:
                other = other if self.is_ordered else other.sort().values
                unsteady |= other != theirs
                swing = max(swing, _largest_difference(other, theirs))
        return unsteady, swing


def differing_names(first: Results, second: Results) -> set[str]:
    """Names of tensors that are not the same to the last bit."""
    return {
        name
        for name, tensor in first.items()
        if isinstance(tensor, torch.Tensor) and not torch.equal(_plain(tensor), _plain(second[name]))
    }


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that can be compared: NaN equals nothing, and types of eight bits compare nothing."""
    wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize < torch.float32.itemsize else tensor
    return torch.nan_to_num(wide)


def _tolerance_of(theirs: torch.Tensor) -> float:
    narrow: float = max(_TF32_TOLERANCE, torch.finfo(theirs.dtype).eps)
    tolerance = _TOLERANCES.get(theirs.dtype, narrow)
    if theirs.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return max(tolerance, _TF32_TOLERANCE)
    return tolerance


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in a row, in a type that torch can sort and compare."""
    flat = tensor.flatten()
    return flat.long() if flat.dtype in _NOT_COMPARED else flat


def _largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
