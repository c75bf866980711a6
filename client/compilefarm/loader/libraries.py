"""Provides the shared libraries that Inductor builds from C++, out of artifacts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from compilefarm.torch_internals.cpp_builds import load_library, stand_in_for_builds
from compilefarm.torch_internals.embedded_libraries import source_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLibrary:
    """A shared library that Inductor built.

    Attributes:
        source_digest: what was asked for, see `source_digest`.
        name: Inductor's name for it; it becomes part of a module name in sys.modules.
        path: where it lies.
    """

    source_digest: str
    name: str
    path: str


class LibraryNotPacked(Exception):
    """A program asks for a library that its artifact does not hold."""


# Inductor builds C++ through one function. The worker listens there to learn which library answers which source; the
# loader answers there from the artifact. A thread that does neither is passed on to Inductor, so that local compiles go
# on beside a load.
Answer = Callable[[Any, str, Callable[[], Any]], Callable[[], Any]]
_answer: ContextVar[Answer | None] = ContextVar("compilefarm_libraries", default=None)


@contextlib.contextmanager
def using_libraries(libraries: Mapping[str, BuiltLibrary]) -> Iterator[None]:
    """Inside, libraries come from `libraries` (by source digest), and nothing is built.

    Raises:
        LibraryNotPacked: a program asks for one that is not among them.
    """

    def answer(cache: Any, source_digest: str, _: Callable[[], Any]) -> Callable[[], Any]:
        library = libraries.get(source_digest)
        if library is None:
            raise LibraryNotPacked(f"the artifact holds no library for source {source_digest}")
        # At once: the files may be gone by the time of the first call.
        loaded = load_library(cache, path=library.path, name=library.name)
        return lambda: loaded

    with answering(answer):
        yield


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Inside, `answer` is asked for every library of this thread: with Inductor's cache, the digest of the source, and
    what has Inductor build it."""
    stand_in_for_builds(_build)
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def _build(
    cache: Any, main_code: str, args: tuple[Any, ...], kwargs: dict[str, Any], build: Callable[[], Callable[[], Any]]
) -> Callable[[], Any]:
    answer = _answer.get()
    if answer is None:
        return build()
    return answer(cache, source_digest(cache.__name__, main_code, args, kwargs), build)
