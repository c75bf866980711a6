"""Which environment variables a trace reads.

Dynamo guards a variable that is set, and not one that is not. Both are found where os.environ turns a name into bytes,
which it does for every name that it is asked for (os.py of the standard library). Who goes through all of them rests on
more than can be compared: no two pods have the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from compilefarm.reuse.refusals import Unsayable
from compilefarm.torch_internals.dynamo_inlining import watching_inlined_calls

_environs: tuple[Any, ...] = (os.environ, getattr(os, "environb", os.environ))
_ENCODERS = frozenset(each.encodekey.__code__ for each in _environs)
_GOING_THROUGH = frozenset({type(os.environ).__iter__.__code__, type(os.environ).__len__.__code__})


class EnvironmentReads:
    """Names of variables that were read."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._unsayable: str | None = None

    def note(self, code: CodeType, arguments: Sequence[Any]) -> None:
        """Takes note of a call that was traced into."""
        if code in _GOING_THROUGH:
            self._unsayable = "all environment variables"
        if code not in _ENCODERS:
            return
        name = arguments[0] if arguments else None
        if isinstance(name, (str, bytes)):
            self._names.add(os.fsdecode(name))
        else:
            self._unsayable = "an environment variable whose name depends on values"

    def names(self) -> list[str]:
        """Returns the names in order.

        Raises:
            Unsayable: a variable was read whose name is not known, or all of them.
        """
        if self._unsayable is not None:
            raise Unsayable(self._unsayable)
        return sorted(self._names)


@contextlib.contextmanager
def reading_environment() -> Iterator[EnvironmentReads]:
    """Collects what a trace reads meanwhile."""
    reads = EnvironmentReads()
    with watching_inlined_calls(reads.note):
        yield reads
