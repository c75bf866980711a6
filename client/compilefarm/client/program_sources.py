"""Where the program of a saved function comes from: the farm that loads the function, or else the farm of the process.

torch unpickles saved functions by itself, so that a farm cannot be handed to what is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from compilefarm.client.programs import Program
from compilefarm.core.requests import Request

ProgramSource = Callable[[Request], Program]


def _none(request: Request) -> Program:
    del request
    raise RuntimeError("nothing asks a farm for the programs of saved functions: import compilefarm.client first")


_source: ContextVar[ProgramSource | None] = ContextVar("source", default=None)
_source_of_process: ProgramSource = _none


@contextmanager
def programs_from(source: ProgramSource) -> Iterator[None]:
    """Has functions that are loaded inside get their programs from a source."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def set_source_of_process(source: ProgramSource) -> None:
    """Has functions that are loaded anywhere else get their programs from a source."""
    global _source_of_process
    _source_of_process = source


def program_for(request: Request) -> Program:
    """Returns the program for a request, from the source that is to be asked here."""
    return (_source.get() or _source_of_process)(request)
