"""Records which shared library Inductor builds from which C++ source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from compilefarm.loader.libraries import BuiltLibrary, answering
from compilefarm.torch_internals.cpp_builds import path_of_library


@contextlib.contextmanager
def recording_libraries() -> Iterator[list[BuiltLibrary]]:
    """Collects every library that Inductor builds and loads inside, in the order of first use."""
    built: dict[str, BuiltLibrary] = {}

    def record(_: Any, source_digest: str, build: Callable[[], Any]) -> Callable[[], Any]:
        load = build()

        def load_and_record() -> Any:
            library = load()
            path = path_of_library(library)
            built[source_digest] = BuiltLibrary(source_digest=source_digest, name=library.key, path=path)
            recorded[:] = built.values()
            return library

        return load_and_record

    recorded: list[BuiltLibrary] = []
    with answering(record):
        yield recorded
