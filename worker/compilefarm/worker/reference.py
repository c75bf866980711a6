"""The reference of a verification: the results of a graph in high precision.

Eager and the artifact both round, at different places. Neither is the truth, so both are held to the same graph with
every floating point number as float64, or as float32 where memory forbids that, in it and on the way to its results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from compilefarm.graph.leaves import as_result, is_result
from compilefarm.torch_internals.operator_calls import OperatorMode
from compilefarm.torch_internals.operators import HigherOrderOperator, OpOverload, schema_of
from compilefarm.torch_internals.pytrees import map_leaves, map_tensors
from compilefarm.worker.exhaustion import find_exhausted
from compilefarm.worker.results import Results
from compilefarm.worker.wide_operators import WIDE_OPERATORS

log = logging.getLogger(__name__)

_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
# They assert the dtypes that a program has in its own precision.
_ASSERTIONS = frozenset({"aten::_assert_tensor_metadata"})


class NoReference(Exception):
    """The graph means something else in another precision, such as the bits of its floats."""


class InsideMode(OperatorMode):  # type: ignore[misc]  # torch gives it no type
    """A mode in which graphs are run, too, that are handed to higher-order operators."""

    # torch/_ops.py: HigherOrderOperator.dispatch asks for it.
    supports_higher_order_operators = True

    def entering(self, arguments: Any) -> Any:
        """Arguments of a higher-order operator. It calls graphs among them outside of this mode."""
        return map_leaves(self._entering, arguments)

    def _entering(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor | torch.dtype) or not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return call


def results_within(mode: InsideMode, run: Callable[[], Results], *, what: str) -> Results | None:
    """Results of a graph that runs in a mode; None where it cannot.

    Args:
        mode: changes how the graph rounds.
        run: runs the graph, each time on the same inputs.
        what: these results, for the log.
    """
    try:
        with mode:
            return run()
    except Exception as error:  # noqa: BLE001 - a graph that looks at the bits of its floats raises what it likes
        log.info("no results with %s: %s", what, error)
        return None


class Widening(InsideMode):
    """Has everything below it computed in a wide type: casts to narrow ones, autocast's too, change nothing.

    Autocast leaves float64 alone by itself (aten/src/ATen/autocast_mode.h: is_eligible).

    Args:
        floats: torch.float64 or torch.float32.
    """

    def __init__(self, floats: torch.dtype) -> None:
        super().__init__()
        self._floats = floats

    def widen(self, value: Any) -> Any:
        """A tensor, or a dtype, as it is in the wide type; anything else as it is."""
        if isinstance(value, torch.Tensor):
            wide = self._wide(value.dtype)
            return value if wide is value.dtype else value.to(wide)
        return self._wide(value) if isinstance(value, torch.dtype) else value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            args, kwargs = self.entering((args, kwargs or {}))
        elif isinstance(func, OpOverload):
            if func.name().partition(".")[0] in _ASSERTIONS:
                return None
            self._check(func, args)
            func = WIDE_OPERATORS.get(func.name(), func)
        args, kwargs = map_leaves(self.widen, (args, kwargs or {}))
        return map_tensors(self.widen, func(*args, **kwargs))

    def _wide(self, dtype: torch.dtype) -> torch.dtype:
        wide = _COMPLEX[self._floats] if dtype.is_complex else self._floats
        return wide if (dtype.is_complex or dtype.is_floating_point) and dtype.itemsize < wide.itemsize else dtype

    def _check(self, func: OpOverload, args: Sequence[Any]) -> None:
        if func is torch.ops.aten.view.dtype:
            raise NoReference("the graph looks at the bits of its numbers")
        for argument, value in zip(schema_of(func).arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(value, torch.Tensor) and self._wide(value.dtype) is not value.dtype:
                raise NoReference(f"{func.name()} writes to a tensor that could not be widened")


def find_reference(
    run: Callable[[Sequence[Any]], Results], inputs: Callable[[], Sequence[Any]], *, inside: torch.dtype
) -> Results | None:
    """Results of a graph in high precision; None where it cannot be computed so.

    Args:
        run: runs the graph on inputs, and takes what is left afterwards.
        inputs: makes inputs, the same ones whenever it is called.
        inside: the coarsest dtype that the graph computes in, which has to be coarser than that of the reference.
    """
    for floats in (torch.float64, torch.float32):
        if torch.finfo(floats).eps >= torch.finfo(inside).eps:
            continue
        try:
            return _run_wide(run, inputs, floats=floats)
        except Exception as error:  # noqa: BLE001 - operators without float64 raise what they like
            log.info("no reference in %s: %s", floats, error)
            if find_exhausted(error) is None:
                return None
    return None


def _run_wide(
    run: Callable[[Sequence[Any]], Results], inputs: Callable[[], Sequence[Any]], *, floats: torch.dtype
) -> Results:
    mode = Widening(floats)
    given = [_widened(each, mode) for each in inputs()]
    with _default_dtype(floats), mode:
        return run(given)


def _widened(given: Any, mode: Widening) -> Any:
    if not isinstance(given, torch.Tensor):
        return given
    with torch.inference_mode(False), torch.no_grad():
        wide = mode.widen(given.detach())
    return as_result(wide) if is_result(given) else wide.requires_grad_(given.requires_grad)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
