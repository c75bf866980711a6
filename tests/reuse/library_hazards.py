"""Cases of tests/reuse/hazards.py about NumPy and einops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import einops
import numpy as np
import torch

from tests.reuse.cases import X, case, more, patched
from tests.reuse.object_hazards import holding

_HERE = sys.modules[__name__]

_times = lambda x, t: x * t  # noqa: E731
_times_float = lambda x, t: x * float(t)  # noqa: E731
for _name, _kind in {
    "float64": np.float64,
    "float32": np.float32,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}.items():
    holding(f"numpy_{_name}", lambda k=_kind: k(0), lambda k=_kind: k(1), lambda x, t: x * (2 if t else 3))
    holding(f"numpy_{_name}_product", lambda k=_kind: k(1), lambda k=_kind: k(0), _times)
    holding(f"numpy_{_name}_float", lambda k=_kind: k(1), lambda k=_kind: k(0), _times_float)
holding(
    "numpy_array", lambda: np.array([2.0, 1.0]), lambda: np.array([3.0, 1.0]), lambda x, t: x * torch.from_numpy(t)[0]
)
holding("numpy_array_shape", lambda: np.ones(2), lambda: np.ones(3), lambda x, t: x * t.shape[0])
holding("numpy_array_item", lambda: np.array([2.0]), lambda: np.array([3.0]), lambda x, t: x * t[0])
holding(
    "numpy_dtype",
    lambda: np.dtype("float32"),
    lambda: np.dtype("float64"),
    lambda x, t: x * t.itemsize,
    register=case,
)
holding("numpy_class", lambda: np.float32, lambda: np.float64, lambda x, t: x * (2 if t is np.float32 else 3))
holding(
    "numpy_function",
    lambda: np.negative,
    lambda: np.abs,
    lambda x, t: torch.from_numpy(np.asarray(t(x.numpy()))),
    register=case,
)
holding(
    "numpy_generator",
    lambda: np.random.default_rng(1),
    lambda: np.random.default_rng(2),
    lambda x, t: x * float(t.random()),
)


@more
def numpy_pi(changed: bool) -> Iterator[Any]:
    with patched(np, "pi", 3.0, when=changed):
        yield lambda x: x * np.pi, (X,)


@more
def numpy_function_rebound(changed: bool) -> Iterator[Any]:
    with patched(np, "negative", np.abs, when=changed):
        yield lambda x: torch.from_numpy(np.negative(x.numpy())), (X,)


# Until 2.15 Dynamo leaves its functions in graphs.

_PATTERN = "a (b c) -> (a b) c"


def arranged(x: torch.Tensor) -> torch.Tensor:
    return einops.rearrange(x * 2, _PATTERN, c=2)


@case
def another_pattern_of_einops(changed: bool) -> Iterator[Any]:
    with patched(_HERE, "_PATTERN", "a (b c) -> (b a) c", when=changed):
        yield arranged, (X,)


@case
def a_function_within_einops_that_is_rebound(changed: bool) -> Iterator[Any]:
    made = einops.einops._prepare_transformation_recipe
    other = (
        "_prepare_transformation_recipe",
        lambda pattern, *others, **named: made(_swapped(pattern), *others, **named),
    )
    with patched(einops.einops, *other, when=changed):
        yield arranged, (X,)


def _swapped(pattern: str) -> str:
    return pattern.replace("(a b)", "(b a)")
