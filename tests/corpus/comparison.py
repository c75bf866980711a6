"""What a run of a program left behind, and how two such runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from compilefarm.torch_internals.pytrees import iterate_leaves

# Largest difference allowed between a compiled program and eager, as a share of the largest magnitude in the tensor:
# another order of additions costs a few bits, a wrong kernel about all of them.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Values below this are noise around zero.
_SMALLEST_MAGNITUDE = 1e-2
# How many times as far from a reference as eager a result may be, and by what share of its size beside that: additions
# in another order.
_TIMES_AS_FAR = 2.0
_SHARE_BESIDE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A tensor or plain value, as it was when it was looked at.

    Attributes:
        name: where it was found.
        value: a copy that nobody else writes to.
        stride: strides of the original; None for a plain value.
        requires_grad: whether the original was tracked by autograd.
    """

    name: str
    value: Any
    stride: tuple[int, ...] | None
    requires_grad: bool


def look_at(name: str, value: Any) -> list[Leaf]:
    """All leaves of a value, copied. Gradients of tensors are leaves, too."""
    found = []
    for number, leaf in enumerate(iterate_leaves(value)):
        where = f"{name}, {number}"
        if isinstance(leaf, torch.Tensor) and leaf.is_nested:
            found += look_at(where, list(leaf.unbind()))
            continue
        found.append(_leaf(where, torch.as_tensor(leaf) if isinstance(leaf, np.ndarray | np.floating) else leaf))
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.grad is not None:
            found.append(_leaf(f"gradient of {where}", leaf.grad))
    return found


def differences(given: Sequence[Leaf], expected: Sequence[Leaf], *, precision: torch.dtype | None = None) -> list[str]:
    """In words, what differs.

    Args:
        given: what a run left behind.
        expected: what it should have.
        precision: of the numbers inside; results may differ by its tolerance, or by that of their own dtype if that is
            larger. None if every bit and every stride counts.
    """
    if [leaf.name for leaf in given] != [leaf.name for leaf in expected]:
        return [f"{[leaf.name for leaf in given]} instead of {[leaf.name for leaf in expected]}"]
    found = (_difference(ours, theirs, precision=precision) for ours, theirs in zip(given, expected, strict=True))
    return [difference for difference in found if difference is not None]


def farther(given: Sequence[Leaf], expected: Sequence[Leaf], reference: Sequence[Leaf]) -> list[str]:
    """In words, which results are farther from a reference than what is expected: for programs in which a last bit
    changes other numbers by much, as where experts are chosen.

    Args:
        given: what a run left behind.
        expected: what it should have, but for roundings.
        reference: the same in high precision. Floats may be twice as far from it as those expected, by root mean
            square; anything else has to be what is expected.
    """
    names = [[leaf.name for leaf in leaves] for leaves in (given, expected, reference)]
    if names[0] != names[1] or names[1] != names[2]:
        return ["runs have results of different names: {} and {}, in high precision {}".format(*names)]
    found = (_farther(*leaves) for leaves in zip(given, expected, reference, strict=True))
    return [difference for difference in found if difference is not None]


def _farther(ours: Leaf, theirs: Leaf, reference: Leaf) -> str | None:
    if not isinstance(theirs.value, torch.Tensor) or not theirs.value.is_floating_point():
        return _difference(ours, theirs, precision=torch.float64)
    if _kind(ours) != _kind(theirs):
        return f"{ours.name} is {_kind(ours)}, not {_kind(theirs)}"
    exact, eager = _plain(reference.value), _plain(theirs.value)
    finite = eager.isfinite() & exact.isfinite()
    exact = exact[finite]
    distance, of_eager = (_root_mean_square(each[finite] - exact) for each in (_plain(ours.value), eager))
    # What is not a number is not near either.
    if distance <= _TIMES_AS_FAR * of_eager + _SHARE_BESIDE * _root_mean_square(exact):
        return None
    return f"{ours.name} is {distance:.1e} away from the reference, and eager {of_eager:.1e}"


def _root_mean_square(elements: torch.Tensor) -> float:
    return elements.square().mean().sqrt().item() if elements.numel() else 0.0


def _leaf(name: str, value: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(name=name, value=value, stride=None, requires_grad=False)
    strided = value.layout == torch.strided
    return Leaf(
        name=name,
        value=value.detach().clone(),
        stride=tuple(value.stride()) if strided else None,
        requires_grad=value.requires_grad,
    )


def _difference(ours: Leaf, theirs: Leaf, *, precision: torch.dtype | None) -> str | None:
    if not isinstance(theirs.value, torch.Tensor):
        return None if _is_same(ours.value, theirs.value) else f"{ours.name} is {ours.value!r}, not {theirs.value!r}"
    if _kind(ours) != _kind(theirs):
        return f"{ours.name} is {_kind(ours)}, not {_kind(theirs)}"
    if precision is None and ours.stride != theirs.stride:
        return f"{ours.name} has strides {ours.stride}, not {theirs.stride}"
    off = _share_off(_plain(ours.value), _plain(theirs.value))
    allowed = 0.0 if precision is None else _tolerance(theirs.value.dtype, precision)
    return None if off <= allowed else f"{ours.name} is off by {off:.1e} of its magnitude"


def _is_same(ours: object, theirs: object) -> bool:
    # NaN differs from itself, and is the same here.
    return type(ours) is type(theirs) and (ours == theirs or repr(ours) == repr(theirs))


def _kind(leaf: Leaf) -> str:
    if not isinstance(leaf.value, torch.Tensor):
        return repr(leaf.value)
    tracked = " with gradient" if leaf.requires_grad else ""
    return f"{type(leaf.value).__name__} {leaf.value.dtype} {list(leaf.value.shape)} {leaf.value.device}{tracked}"


def _tolerance(dtype: torch.dtype, precision: torch.dtype) -> float:
    own = TOLERANCES.get(dtype.to_real() if dtype.is_complex else dtype)
    return 0.0 if own is None else max(own, TOLERANCES[precision])


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Real numbers in double precision, on the CPU."""
    dense = (tensor.to_dense() if tensor.layout != torch.strided else tensor).cpu()
    return (torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense).double()


def _share_off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference as a share of the largest magnitude; infinite where only one of the two is finite."""
    finite = theirs.isfinite()
    if not torch.equal(finite, ours.isfinite()) or not torch.equal(_signs(ours[~finite]), _signs(theirs[~finite])):
        return float("inf")
    if not finite.any():
        return 0.0
    off = (ours - theirs)[finite].abs().max().item()
    return off / max(theirs[finite].abs().max().item(), _SMALLEST_MAGNITUDE)


def _signs(not_finite: torch.Tensor) -> torch.Tensor:
    return not_finite.nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0)
