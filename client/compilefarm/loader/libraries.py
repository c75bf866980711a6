"""Provides the shared libraries that Inductor builds from C++, out of artifacts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLibrary:
    """A shared library that Inductor built.

    Attributes:
        source_digest: what was asked for, see `_source_digest`.
        name: Inductor's name for it; it becomes part of a module name in sys.modules.
        path: where it lies.
    """

    source_digest: str
    name: str
    path: str


class LibraryNotPacked(Exception):
    """A program asks for a library that its artifact does not hold."""


# Inductor builds C++ through one function, CppCodeCache.load_async (torch/_inductor/codecache.py). The worker listens
# there to learn which library answers which source; the loader answers there from the artifact. A thread that does
# neither is passed on to Inductor, so that local compiles go on beside a load.
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
        loaded = cache._load_library(library.path, library.name)
        return lambda: loaded

    with answering(answer):
        yield


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Inside, `answer` is asked for every library of this thread: with Inductor's cache, the digest of the source, and
    what has Inductor build it."""
    _listen_to_builds()
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def _listen_to_builds() -> None:
    code_cache: Any = importlib.import_module("torch._inductor.codecache").CppCodeCache
    original = code_cache.load_async.__func__
    if getattr(original, "compilefarm", False):
        return

    def load_async(cls: Any, main_code: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        def build() -> Callable[[], Any]:
            load: Callable[[], Any] = original(cls, main_code, *args, **kwargs)
            return load

        answer = _answer.get()
        if answer is None:
            return build()
        return answer(cls, _source_digest(cls.__name__, main_code, args, kwargs), build)

    load_async.compilefarm = True  # type: ignore[attr-defined]
    code_cache.load_async = classmethod(load_async)


def _source_digest(kind: str, main_code: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    # How the build is scheduled says nothing about what is built.
    flags = {name: value for name, value in kwargs.items() if name != "submit_fn"}
    digest = hashlib.sha256()
    for part in (kind, main_code, repr(args), repr(sorted(flags.items()))):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
