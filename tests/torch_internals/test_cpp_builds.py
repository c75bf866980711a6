"""Canaries of torch_internals/cpp_builds.py."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.cpp_builds import (
    Build,
    Trial,
    build_command,
    compilers_tried,
    decide_headers_folder_again,
    headers_folder,
    load_library,
    path_of_library,
    stand_in_for_builds,
    stand_in_for_trials,
    try_instructions,
)
from compilefarm.torch_internals.settings import INDUCTOR

CACHE = importlib.import_module("torch._inductor.codecache")


def test_inductor_names_its_compilers() -> None:
    # Without it client/compilers.py goes by CXX.
    assert isinstance(compilers_tried(), tuple | str)
    with INDUCTOR.patch({"cpp.cxx": (None, "/a/compiler")}):
        assert compilers_tried() == (None, "/a/compiler")


def test_the_command_by_which_inductor_builds() -> None:
    # Else headers that were precompiled for other flags are offered, and every compile builds its own.
    command = build_command()
    assert f"-I{Path(torch.__file__).parent / 'include'}" in command
    with INDUCTOR.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        assert build_command() != command
    with INDUCTOR.patch({"cpp.cxx": ("/nowhere/g++",)}):
        assert build_command() == ""


def test_the_compiler_is_tried_through_check_build() -> None:
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    assert list(inspect.signature(module.VecISA.check_build).parameters) == ["self", "code"]
    tried: list[str] = []

    def trial(flags: str, code: str, build: Callable[[], bool]) -> bool:
        tried.append(flags)
        return False

    standing_in: Trial = trial
    end = stand_in_for_trials(standing_in)
    module.valid_vec_isa_list.cache_clear()
    for instructions in module.supported_vec_isa_list:
        assert not instructions.check_build("")
    assert len(tried) == len(module.supported_vec_isa_list), "trials are told apart by their flags"
    end()
    assert "trial" not in module.VecISA.check_build.__code__.co_freevars


def test_trials_are_those_of_all_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    module, asked = importlib.import_module("torch._inductor.cpu_vec_isa"), []
    assert callable(module.valid_vec_isa_list)
    monkeypatch.setattr(module, "valid_vec_isa_list", lambda: asked.append("all"))
    try_instructions()
    assert asked == ["all"]


def test_headers_lie_where_temporary_files_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    assert os.path.join(folder, "precompiled_headers") == str(headers_folder())
    before = headers_folder()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    decide_headers_folder_again()
    assert headers_folder().is_relative_to(tmp_path)
    assert str(headers_folder() / "locks") == CACHE._HEADER_LOCK_DIR
    monkeypatch.undo()
    decide_headers_folder_again()
    assert headers_folder() == before


def test_cpp_is_built_through_load_async() -> None:
    def build(kind: Any, source: str, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        return run()

    standing_in: Build = build
    stand_in_for_builds(standing_in)
    cache = CACHE.CppCodeCache
    first = cache.load_async
    assert first.__func__.compilefarm
    stand_in_for_builds(standing_in)
    assert cache.load_async.__func__ is first.__func__, "the first one stays"
    for kind in ("CppPythonBindingsCodeCache", "CppWrapperCodeCache"):
        other = getattr(CACHE, kind)
        assert other.load_async.__func__ is cache.load_async.__func__, f"{kind} builds in a way that is not listened to"


def test_a_library_is_loaded_by_its_path_and_name() -> None:
    assert list(inspect.signature(CACHE.CppCodeCache._load_library).parameters) == ["path", "key"]
    path = importlib.import_module("_ctypes").__file__
    loaded = load_library(CACHE.CppCodeCache, path=path, name="anything")
    assert path_of_library(loaded) == path
