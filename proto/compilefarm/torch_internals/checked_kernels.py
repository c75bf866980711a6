"""Kernels of torch for CPUs that reach beyond their tensors by elements that are no numbers.

A request computes such elements, so that it cannot be refused for them. In the processes of a worker these kernels are
asked through others, which look at elements first: a request could have memory written at a place of its choice there.
Pods call them as they are, on elements of their own.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Far beyond any image, and far below what overflows when it is multiplied by the size of one.
_FARTHEST = 2.0**60

Kernel = Callable[..., Any]


@functools.cache
def check_kernels() -> torch.library.Library:
    """For the rest of this process, has elements looked at before such kernels run.

    Returns:
        What keeps the checks registered.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # That is what it is for.
        warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
        for name, checked in _CHECKED.items():
            unchecked = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
            library.impl(name, functools.partial(checked, unchecked), "CPU", with_keyset=True, allow_override=True)
    return library


def _eigenvalues(unchecked: Kernel, keys: Any, matrices: torch.Tensor, **given: Any) -> Any:
    # aten/src/ATen/native/BatchLinearAlgebra.cpp: linalg_eig looks at them, linalg_eigvals does not. LAPACK then
    # refuses to balance them, and goes by numbers of rows that nobody has set.
    if not bool(torch.isfinite(matrices).all()):
        raise RuntimeError("torch.linalg.eigvals: input tensor should not contain infs or NaNs.")
    return unchecked(keys, matrices, **given)


def _gradient_of_samples(
    unchecked: Kernel,
    keys: Any,
    gradient: torch.Tensor,
    image: torch.Tensor,
    places: torch.Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:
    # aten/src/ATen/native/cpu/GridSamplerKernel.cpp takes it that what is clipped or reflected lies in the image. What
    # is no number does not, and is added to some 2**31 elements before it; the other kernel asks for each pixel.
    if bool((places.abs() < _FARTHEST).all()):
        result: tuple[torch.Tensor | None, torch.Tensor] = unchecked(
            keys, gradient, image, places, interpolation, padding, align_corners, wanted
        )
        return result
    of_image, of_places = torch.ops.aten._grid_sampler_2d_cpu_fallback_backward(
        gradient, image, places, interpolation, padding, align_corners
    )
    return of_image if wanted[0] else None, of_places


_CHECKED: dict[str, Callable[..., Any]] = {
    "_linalg_eigvals": _eigenvalues,
    "linalg_eigvals.out": _eigenvalues,
    "grid_sampler_2d_backward": _gradient_of_samples,
}
