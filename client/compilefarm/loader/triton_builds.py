"""Provides the C programs that Triton builds at run time, out of artifacts.

Triton builds its driver module (cuda_utils) in every process, and a launcher for each signature of a kernel that
Inductor cannot launch by itself, with a C compiler and, to find libcuda, /sbin/ldconfig. It does so through a function
of triton/runtime/build.py that triton/backends/nvidia/driver.py has imported: compile_module_from_src up to 3.6,
compile_module_from_file later. This module stands in its place there: pods answer from artifacts, and workers learn
which library answers which source (compilefarm.builder.triton_builds). Triton's own cache is left alone, since its keys
hold what the program `file` says.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from compilefarm.torch_internals.triton_driver import driver_module


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonLibrary:
    """A library that Triton built.

    Attributes:
        source_digest: what was asked for.
        name: the module's name, such as "cuda_utils"; its initialisation function is called after it.
        content: the library.
    """

    source_digest: str
    name: str
    content: bytes


# Both hold for the whole process: Triton builds at a kernel's first call, long after its artifact was loaded, and in
# whichever thread that is. Equal source gives an equal library, so it does not matter which artifact brought it.
_offered: dict[str, TritonLibrary] = {}
# What was built is loaded, also in a process that was forked since then.
_built: dict[str, tuple[TritonLibrary, ModuleType]] = {}


def offer_libraries(libraries: Mapping[str, TritonLibrary]) -> None:
    """From now on, answers Triton's builds from `libraries` (by source digest); others it builds itself."""
    _offered.update(libraries)
    listen_to_builds()


def built_modules() -> list[tuple[TritonLibrary, ModuleType]]:
    """What Triton has built in this process since `listen_to_builds`, in the order of first use."""
    return list(_built.values())


def listen_to_builds() -> None:
    """Stands in between Triton and its builds, in this process, once and for all. Needs an installed Triton."""
    driver = driver_module()
    if hasattr(driver, "compilefarm_library_dirs"):
        return
    # Both places of the driver that build ask for the folders first, which starts a program; who builds needs them.
    driver.compilefarm_library_dirs = driver.library_dirs
    driver.library_dirs = lambda: None
    _stand_in(driver, "compile_module_from_src", source_of=_as_it_is)
    _stand_in(driver, "compile_module_from_file", source_of=_read)


def _stand_in(driver: Any, function: str, *, source_of: Callable[[str], str]) -> None:
    original = getattr(driver, function, None)
    if original is None:
        return

    @functools.wraps(original)
    def build(*args: Any, **kwargs: Any) -> Any:
        source = source_of(args[0] if args else kwargs.get("src") or kwargs["src_path"])
        name = kwargs["name"]
        digest = _source_digest(name, source)
        offered = _offered.get(digest)
        if offered is not None:
            return _load(offered)
        if digest in _built:
            return _built[digest][1]
        if kwargs.get("library_dirs", ()) is None:
            kwargs["library_dirs"] = driver.compilefarm_library_dirs()
        module = original(*args, **kwargs)
        content = Path(module.__file__).read_bytes()
        _built[digest] = TritonLibrary(source_digest=digest, name=name, content=content), module
        return module

    setattr(driver, function, build)


def _as_it_is(source: str) -> str:
    return source


def _read(path: str) -> str:
    return Path(path).read_text()


def _source_digest(name: str, source: str) -> str:
    return hashlib.sha256(f"triton\n{name}\n{source}".encode()).hexdigest()


def _load(library: TritonLibrary) -> ModuleType:
    with tempfile.TemporaryDirectory(prefix="compilefarm-") as folder:
        path = Path(folder) / f"{library.source_digest}.so"
        path.write_bytes(library.content)
        spec = importlib.util.spec_from_file_location(library.name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
