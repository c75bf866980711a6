"""A context manager that is done without where it fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal

from compilefarm.client.announcements import announce_defect
from compilefarm.client.local import is_for_dynamo
from compilefarm.core.interruptions import raise_interruption


class BestEffort(AbstractContextManager[None]):
    """Enters a context. A defect of that context is logged; what happens inside goes on as if it were not there.

    Args:
        make: makes the context manager, and imports what it needs.
        where: what it is about, in words for the log.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]], *, where: str) -> None:
        self._make = make
        self._where = where
        self._context: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        try:
            context = self._make()
            context.__enter__()
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            announce_defect(error, where=self._where)
        else:
            self._context = context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        if self._context is not None:
            try:
                self._context.__exit__(kind, error, traceback)
            except Exception as another:
                raise_interruption(another)
                if another is error or is_for_dynamo(another):
                    raise
                announce_defect(another, where=self._where)
        return False
