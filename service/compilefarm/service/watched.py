"""Watches files of tokens and certificates, so that changes need no restart."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from compilefarm.service.config import CannotStart

log = logging.getLogger(__name__)

T = TypeVar("T")


class Watched(Generic[T]):
    """The parsed content of some files, parsed again when they change. Safe for threads.

    Args:
        paths: the files.
        read: makes sense of them; raises CannotStart, with the file and what is wrong in it, if there is none.

    Raises:
        CannotStart: there is none.
    """

    def __init__(self, paths: Sequence[str], *, read: Callable[[], T]) -> None:
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._seen = self._marks()
        self._value = read()

    def current(self) -> T:
        """Returns the current content. If it cannot be parsed, the earlier content, and a line in the log."""
        with self._lock:
            marks = self._marks()
            if marks != self._seen:
                self._seen = marks
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._read()
        except CannotStart as error:
            log.error("%s; the change is ignored, and what was read before holds", error)
        else:
            log.info("%s changed, and was read again", ", ".join(self._paths))

    def _marks(self) -> list[tuple[int, ...] | None]:
        return [_mark(path) for path in self._paths]


def read_file(path: str, *, what: str) -> bytes:
    """Reads a file that says who may do what, or proves who somebody is.

    Args:
        path: where it is.
        what: it is, for the message.

    Raises:
        CannotStart: it cannot be read, or every user of this host may change it.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise CannotStart(f"{what} {path} may be changed by every user of this host: chmod o-w {path}")
            return file.read()
    except OSError as error:
        raise CannotStart(f"{what} {path} cannot be read: {error.strerror or error}") from error


def _mark(path: str) -> tuple[int, ...] | None:
    """Another one for every change of a file, and of who may change it; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
