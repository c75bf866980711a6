"""How Inductor builds C++: its compilers, their trials, headers and libraries."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_CACHE = "torch._inductor.codecache"
_INSTRUCTIONS = "torch._inductor.cpu_vec_isa"

# Called instead of a trial of the compiler, with its flags, the program and what runs it; says whether it works.
Trial = Callable[[str, str, Callable[[], bool]], bool]
# Called instead of a build, with the kind of what is built (a class), what was given (a source, further arguments and
# named ones), and what builds it; gives what waits for it.
Build = Callable[[Any, str, tuple[Any, ...], dict[str, Any], Callable[[], Callable[[], Any]]], Callable[[], Any]]


def compilers_tried() -> str | Sequence[str | None]:
    """One compiler, or several in the order in which they are tried; None stands for one that would be downloaded."""
    # Late: a pod asks it where no graph has come, too.
    from torch._inductor import config  # torch/_inductor/config.py: cpp.cxx

    cxx: str | Sequence[str | None] = config.cpp.cxx
    return cxx


def build_command() -> str:
    """The command by which Inductor builds C++ in this process, with names that stand for files and without vector
    instructions; empty if there is no compiler.
    """
    builder: Any = importlib.import_module("torch._inductor.cpp_builder")
    try:
        options = builder.CppTorchOptions(vec_isa=importlib.import_module(_INSTRUCTIONS).invalid_vec_isa)
        command: str = builder.CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()
    except importlib.import_module("torch._inductor.exc").InvalidCxxCompiler:
        return ""
    return command


def try_instructions() -> None:
    """Has Inductor find out which vector instructions work, unless it has already."""
    importlib.import_module(_INSTRUCTIONS).valid_vec_isa_list()


def stand_in_for_trials(trial: Trial) -> Callable[[], None]:
    """Has `trial` called instead of trying the compiler, until what is returned is called."""
    # torch/_inductor/cpu_vec_isa.py: VecISA.check_build
    instructions: Any = importlib.import_module(_INSTRUCTIONS).VecISA
    original = instructions.check_build

    def check_build(self: Any, code: str) -> bool:
        return trial(self._arch_flags, code, lambda: original(self, code))

    def end() -> None:
        instructions.check_build = original

    instructions.check_build = check_build
    return end


def headers_folder() -> Path:
    """Where Inductor keeps the headers that it has precompiled."""
    return Path(importlib.import_module(_CACHE)._HEADER_DIR)


def decide_headers_folder_again() -> None:
    """Has Inductor keep headers in this process's folder for temporary files: it decides where when it is imported,
    which may have been before a fork.
    """
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    headers = os.path.join(folder, "precompiled_headers")
    cache: Any = importlib.import_module(_CACHE)
    cache._HEADER_DIR, cache._HEADER_LOCK_DIR = headers, os.path.join(headers, "locks")


def stand_in_for_builds(build: Build) -> None:
    """Has `build` called instead of building a library, for as long as this process lives; the first one stays."""
    # torch/_inductor/codecache.py: CppCodeCache.load_async, through which all C++ is built.
    cache: Any = importlib.import_module(_CACHE).CppCodeCache
    original = cache.load_async.__func__
    if getattr(original, "compilefarm", False):
        return

    def load_async(cls: Any, main_code: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return build(cls, main_code, args, kwargs, lambda: original(cls, main_code, *args, **kwargs))

    load_async.compilefarm = True  # type: ignore[attr-defined]
    cache.load_async = classmethod(load_async)


def load_library(kind: Any, *, path: str, name: str) -> Any:
    """A library that was built, loaded as one of its kind (a class of torch/_inductor/codecache.py)."""
    return kind._load_library(path, name)


def path_of_library(library: Any) -> str:
    """Where a library lies that Inductor has loaded."""
    # A module, or a ctypes.CDLL.
    path: str = getattr(library, "__file__", None) or library._name
    return path
