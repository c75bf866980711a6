"""Runs a program and an uncompiled graph on copies of the same values, and compares all that can be seen of them.

Like `local`, this imports nothing of ours that leans on torch's private names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.client.findings import Finding
from compilefarm.core.interruptions import raise_interruption
from compilefarm.graph.fp32_precision import Product, narrow_precisions
from compilefarm.graph.leaves import as_result, is_result, leaf_of
from compilefarm.graph.tolerances import coarsest, epsilon_of, tolerance_of

Program = Callable[..., Any]

# A graph whose code names one of these computes in that precision somewhere, whatever its inputs and results are.
_NARROW = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    ".half(": torch.float16,
    "float8": torch.float16,
}
# Of the coarsest precision's epsilon, at least: what many layers add up to.
_EPSILONS = 16.0
# How the code of a graph names what multiplies; matmuls have many names.
_PRODUCTS = {"conv": Product.CONVOLUTION, "lstm": Product.RECURRENT, "gru": Product.RECURRENT, "rnn": Product.RECURRENT}
# Where all that eager computes is smaller than that, it is rounding.
_LEAST_MAGNITUDE = 1e-2


class Uncomparable(Exception):
    """Two right programs may differ here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What can be seen of a call: named values, copied.

    Attributes:
        values: results, and what was written to.
        gradients: of all leaves.
    """

    values: Sequence[tuple[str, Any]]
    gradients: Sequence[tuple[str, Any]]

    @property
    def everything(self) -> Sequence[tuple[str, Any]]:
        return (*self.values, *self.gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """How far two right programs may be apart.

    Attributes:
        tolerance: as a share of the largest magnitude.
        may_overflow: eager keeps in float16 what a compiled program has in float32: what is too large for it is finite
            there.
    """

    tolerance: float
    may_overflow: bool


def compare(program: Program, *, eager: Program, code: str, inputs: Sequence[Any], held: Sequence[Any]) -> Finding:
    """Compares results, gradients, and what inputs and tensors of the graph are afterwards.

    Nothing that was given is changed, and neither is the state of random number generators.

    Args:
        program: what is in doubt.
        eager: the uncompiled graph.
        code: of the graph, as Python.
        inputs: of the call.
        held: tensors that the graph holds.
    """
    try:
        _require_comparable(code, [value for value in (*inputs, *held) if isinstance(value, torch.Tensor)])
        devices = _cuda_devices((*inputs, *held), code=code)
        with _restoring(held), _restoring_random_state(devices) as has_drawn:
            theirs = _run(eager, inputs, held=held)
            if has_drawn():
                raise Uncomparable("the graph draws random numbers")
        with _restoring(held), _restoring_random_state(devices):
            try:
                ours = _run(program, inputs, held=held)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, eager does not raise it
                raise_interruption(error)
                return Finding(
                    outcome="differs", detail=f"it raises {type(error).__name__}: {error}, and eager does not"
                )
    except Uncomparable as why:
        return Finding(outcome="skipped", detail=str(why))
    except torch.OutOfMemoryError:
        return Finding(outcome="skipped", detail="there is no memory for copies")
    difference = _find_difference(ours, theirs, allowed=_allowed(code, theirs))
    return Finding(outcome="differs", detail=difference) if difference else Finding(outcome="same")


def _require_comparable(code: str, tensors: Sequence[torch.Tensor]) -> None:
    if "empty" in code:
        raise Uncomparable("the graph makes tensors without elements")
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise Uncomparable(f"it takes a {type(tensor).__name__} of layout {tensor.layout}")
        if tensor.is_conj() or tensor.is_neg():
            raise Uncomparable("it takes a view that is conjugated or negated later")


def _run(program: Program, inputs: Sequence[Any], *, held: Sequence[torch.Tensor]) -> _Seen:
    copies = _copied(inputs)
    # Before the graph writes something with gradients into what had none.
    leaves = _leaves([*copies, *held])
    results = program(*copies)
    results = list(results) if isinstance(results, list | tuple) else [results]
    seen = [(f"result {number}", _kept(value)) for number, value in enumerate(results)]
    seen += [(f"input {number} afterwards", _kept(value)) for number, value in enumerate(copies)]
    seen += [(f"tensor {number} of the graph afterwards", _kept(value)) for number, value in enumerate(held)]
    return _Seen(values=seen, gradients=_gradients(results, leaves))


def _leaves(values: Sequence[Any]) -> list[torch.Tensor]:
    leaves = [leaf_of(value) for value in values if isinstance(value, torch.Tensor)]
    return [leaf for leaf in leaves if leaf.requires_grad]


def _copied(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the tensors; those that share memory share it afterwards."""
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        place = (value.device, storage.data_ptr())
        if place not in storages:
            storages[place] = storage.clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(storages[place], value.storage_offset(), value.shape, value.stride())
        return as_result(copy) if is_result(value) else copy.requires_grad_(value.requires_grad)

    return [copied(value) for value in inputs]


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _gradients(results: Sequence[Any], leaves: Sequence[torch.Tensor]) -> list[tuple[str, Any]]:
    roots = [value for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
    if not roots or not leaves or not torch.is_grad_enabled():
        return []
    # Different weights: the gradients of many a sum are zero.
    weights = [
        torch.linspace(0.5, 1.5, root.numel(), device=root.device).to(root.dtype).view_as(root) for root in roots
    ]
    found = torch.autograd.grad(roots, leaves, grad_outputs=weights, allow_unused=True)
    return [
        (f"gradient {number}", torch.zeros_like(leaf) if gradient is None else _dense(gradient.detach()))
        for number, (leaf, gradient) in enumerate(zip(leaves, found, strict=True))
    ]


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """With all of its elements: those of an embedding may have some alone."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


@contextmanager
def _restoring(held: Sequence[torch.Tensor]) -> Iterator[None]:
    before = [tensor.detach().clone() for tensor in held]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, content in zip(held, before, strict=True):
                if not torch.equal(tensor, content):
                    tensor.copy_(content)


def _cuda_devices(values: Sequence[Any], *, code: str) -> Sequence[int]:
    """Numbers of the GPUs that a graph may compute on."""
    devices = {value.device.index for value in values if isinstance(value, torch.Tensor) and value.is_cuda}
    if "cuda" in code and torch.cuda.is_available():
        # It makes tensors there, and need not be given any.
        devices |= {torch.cuda.current_device()}
    return sorted(devices)


@contextmanager
def _restoring_random_state(devices: Sequence[int]) -> Iterator[Callable[[], bool]]:
    """Inside, tells whether random numbers were drawn, on the CPU or on GPUs; afterwards, none were."""

    def states() -> list[torch.Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]

    before = states()
    try:
        yield lambda: not all(map(torch.equal, states(), before))
    finally:
        torch.set_rng_state(before[0])
        for device, state in zip(devices, before[1:], strict=True):
            torch.cuda.set_rng_state(state, device)


def _allowed(code: str, seen: _Seen) -> _Allowed:
    dtypes = {value.dtype for _, value in seen.everything if isinstance(value, torch.Tensor)}
    floating = {dtype.to_real() for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}
    floating |= {dtype for name, dtype in _NARROW.items() if name in code}
    floating |= {torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    # What is infinite because the graph says so stays so.
    may_overflow = torch.float16 in floating and "inf" not in code
    if "float32" in code:
        floating.add(torch.float32)
    if torch.float32 in floating:
        floating |= _narrow_products(
            code, is_cuda=any(value.is_cuda for _, value in seen.everything if _is_tensor(value))
        )
    inside = coarsest(floating) or torch.float64
    tolerance = max(_EPSILONS * epsilon_of(inside), *map(tolerance_of, floating or {inside}))
    return _Allowed(tolerance=tolerance, may_overflow=may_overflow)


def _narrow_products(code: str, *, is_cuda: bool) -> set[torch.dtype]:
    products = {Product.MATMUL, *(product for name, product in _PRODUCTS.items() if name in code)}
    return {dtype for product, dtype in narrow_precisions(is_cuda=is_cuda).items() if product in products}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _find_difference(ours: _Seen, theirs: _Seen, *, allowed: _Allowed) -> str:
    """What differs first, in words; empty if nothing does."""
    if len(ours.everything) != len(theirs.everything):
        return f"there are {len(ours.everything)} results and gradients, and eager has {len(theirs.everything)}"
    has_floats = any(_is_tensor(value) and value.is_floating_point() for _, value in theirs.everything)
    least = [_LEAST_MAGNITUDE] * len(theirs.values) + [_least_gradient(theirs)] * len(theirs.gradients)
    for (name, our), (_, their), floor in zip(ours.everything, theirs.everything, least, strict=True):
        if difference := _difference(our, their, allowed=allowed, least=floor, exact=not has_floats):
            return f"{name} {difference}"
    return ""


def _least_gradient(seen: _Seen) -> float:
    """A gradient smaller than that is rounding of larger ones: that of a bias before a norm, which is zero."""
    return _LEAST_MAGNITUDE * max([1.0, *(_magnitude(gradient) for _, gradient in seen.gradients)])


def _magnitude(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _difference(ours: Any, theirs: Any, *, allowed: _Allowed, least: float, exact: bool) -> str:
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        same = type(ours) is type(theirs) and (isinstance(ours, float) or ours == theirs)
        return "" if same else f"is {ours!r}, and eager has {theirs!r}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {ours.dtype}{list(ours.shape)}, and eager has {theirs.dtype}{list(theirs.shape)}"
    if not (theirs.is_floating_point() or theirs.is_complex()):
        # Integers that follow from floats may differ at near ties.
        return "" if not exact or torch.equal(ours, theirs) else "differs"
    return _difference_of_floats(ours, theirs, allowed=allowed, least=least)


def _difference_of_floats(ours: torch.Tensor, theirs: torch.Tensor, *, allowed: _Allowed, least: float) -> str:
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    ours, theirs = ours.to(wide), theirs.to(wide)
    finite = theirs.isfinite()
    if not torch.equal(ours.isfinite() & finite if allowed.may_overflow else ours.isfinite(), finite):
        return "is not finite where eager is, or the other way round"
    if not finite.any():
        return ""
    magnitude = _magnitude(theirs)
    largest = (ours[finite] - theirs[finite]).abs().max().item()
    if largest <= allowed.tolerance * max(magnitude, least):
        return ""
    return f"differs by {largest:.3g} where values reach {magnitude:.3g}; {allowed.tolerance:.0e} of that is allowed"
