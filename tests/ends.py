"""Which tests the oldest torch does, and which later ones do, where both would say much the same: every other one each.
`-m corpus` takes the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch

IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)
# Where a test is one of those that a torch leaves to the other.
_LEFT_TO_THE_OTHER = pytest.mark.corpus
_HERE: tuple[pytest.MarkDecorator, ...] = ()


def shared_out(values: Iterable[Any], *, later: Collection[Any] = ()) -> list[Any]:
    """Arguments for `pytest.mark.parametrize`, of which this torch does every other one.

    Args:
        values: what is tried.
        later: those of them that the oldest torch cannot do.
    """
    return [
        pytest.param(value, marks=_HERE if is_of_this_end(number, value, later=later) else _LEFT_TO_THE_OTHER)
        for number, value in enumerate(values)
    ]


def is_of_this_end(number: int, value: Any, *, later: Collection[Any] = ()) -> bool:
    """Whether this torch does the one with this number."""
    return not IS_OLD if value in later else number % 2 == IS_OLD


def at_the_oldest(test: Any) -> Any:
    """A test that the oldest torch does for all."""
    return test if IS_OLD else _LEFT_TO_THE_OTHER(test)


def at_later_ones(test: Any) -> Any:
    """A test that later releases of torch do for all."""
    return _LEFT_TO_THE_OTHER(test) if IS_OLD else test
