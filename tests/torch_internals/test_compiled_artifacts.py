"""Canaries of torch_internals/compiled_artifacts.py: torch takes what these write."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compilefarm.torch_internals.compiled_artifacts import load_exported, write_binary, write_unpacked


@pytest.fixture(scope="module")
def entry() -> Any:
    """A program that Inductor compiled, without C++ of its own."""
    inductor: Any = importlib.import_module("torch._inductor")
    graph = torch.fx.symbolic_trace(lambda x: (torch.mm(x, x),))
    compiled = inductor.standalone_compile(graph, [torch.ones(3, 3)], dynamic_shapes="from_example_inputs", aot=True)
    entry, *_ = pickle.loads(compiled.serialize())
    return entry


def test_torch_loads_a_binary(entry: Any, tmp_path: Path) -> None:
    write_binary(entry, path=tmp_path / "program")
    (result,) = load_exported(tmp_path / "program", format="binary")(torch.eye(3))
    assert torch.equal(result, torch.eye(3))


def test_what_torch_has_is_named_as_torchs_whoever_else_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ModuleType("elsewhere")
    elsewhere.torch = torch  # type: ignore[attr-defined]
    # Python looks through modules in the order of their import.
    monkeypatch.setattr(sys, "modules", {"elsewhere": elsewhere, **sys.modules})
    formats = [torch.contiguous_format, torch.channels_last, torch.contiguous_format]
    write_binary(formats, path=tmp_path / "program")
    content = (tmp_path / "program").read_bytes()
    assert b"elsewhere" not in content
    assert pickle.loads(content[content.index(b"\x80\x04\x95") :]) == (formats, {}, {})


def test_torch_loads_a_folder_whose_wrapper_is_a_file(entry: Any, tmp_path: Path) -> None:
    write_unpacked(entry, key="a-key", folder=tmp_path)
    (wrapper,) = tmp_path.glob("*/*.py")
    assert "extern_kernels.mm" in wrapper.read_text()
    (result,) = load_exported(tmp_path, format="unpacked")(torch.eye(3))
    assert torch.equal(result, torch.eye(3))
    # What is changed there is what runs.
    wrapper.write_text(wrapper.read_text().replace("extern_kernels.mm(arg0_1, arg0_1,", "torch.add(arg0_1, arg0_1,"))
    importlib.import_module("torch._inductor.codecache").PyCodeCache.cache_clear()
    (changed,) = load_exported(tmp_path, format="unpacked")(torch.eye(3))
    assert torch.equal(changed, 2 * torch.eye(3))
