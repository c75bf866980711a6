"""Modules are told of when they are imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from compilefarm.torch_internals.imported_modules import DYNAMO, when_imported


def test_a_module_is_told_once_whoever_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "told_of.py").write_text("value = 7")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, told = list(sys.meta_path), list[int]()
    try:
        when_imported("told_of", lambda module: told.append(module.value))
        assert not told
        importlib.import_module("told_of")
        assert told == [7]
        assert sys.meta_path == finders
        when_imported("told_of", lambda module: told.append(module.value + 1))
        assert told == [7, 8]
    finally:
        sys.modules.pop("told_of", None)


def test_dynamo_is_the_module_that_torch_compile_imports() -> None:
    assert torch.compile.__module__ == "torch"
    assert importlib.import_module(DYNAMO).optimize.__module__.startswith(DYNAMO)
