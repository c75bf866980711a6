"""What is known of the C++ compiler is used where it holds, and nowhere else."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from compilefarm.v1.child_pb2 import BuildTrial, ChildReady, Toolchain
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.gateways_pb2 import ToolchainRecord
from compilefarm.worker import toolchain
from compilefarm.worker.toolchain import ToolchainCache, machine_of

READY = ChildReady(environment=Environment(torch="2.11.0"), build_command="g++ i -O3 -I/opt/torch/include")


def cache_with(folder: Path, ready: ChildReady) -> ToolchainCache:
    """A cache that knows the compiler of one child, which built a header."""
    built_in = folder / "child"
    built_in.mkdir()
    (built_in / "some.h.gch").write_bytes(b"precompiled")
    cache = ToolchainCache(folder / "cache")
    cache.prepare()
    found = Toolchain(trials=[BuildTrial(program_digest="d", works=True)], headers=["some.h.gch"])
    cache.keep(machine_of(ready), found, built_in)
    return cache


def test_what_was_found_out_is_known_with_its_headers(tmp_path: Path) -> None:
    cache = cache_with(tmp_path, READY)
    known = cache.find(machine_of(READY))
    assert known is not None
    assert [trial.works for trial in known.trials] == [True]
    assert [(cache.headers_folder / name).read_bytes() for name in known.headers] == [b"precompiled"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            ChildReady(environment=READY.environment, build_command="g++ i -O3 -I/home/me/torch/include"),
            id="the same torch in another virtual environment",
        ),
        pytest.param(
            ChildReady(environment=READY.environment, build_command="g++ i -O3 -fwrapv -I/opt/torch/include"),
            id="a release of Compilefarm that sets another flag",
        ),
        pytest.param(
            ChildReady(environment=Environment(torch="2.12.0"), build_command=READY.build_command),
            id="another torch in the same place",
        ),
    ],
)
def test_an_interpreter_that_compiles_otherwise_finds_it_out_anew(tmp_path: Path, other: ChildReady) -> None:
    assert cache_with(tmp_path, READY).find(machine_of(other)) is None


def test_a_header_that_somebody_removed_is_built_anew(tmp_path: Path) -> None:
    cache = cache_with(tmp_path, READY)
    (cache.headers_folder / "some.h.gch").unlink()
    assert cache.find(machine_of(READY)) is None


def test_headers_that_many_came_after_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_MOST_HEADERS", 2)
    cache = cache_with(tmp_path, READY)
    os.utime(cache.headers_folder / "some.h.gch", (1, time.time() - 60))
    for name in ("next.h.gch", "last.h.gch"):
        (tmp_path / "child" / name).write_bytes(b"precompiled")
        other = ChildReady(environment=READY.environment, build_command=f"g++ -D{name}")
        cache.keep(machine_of(other), Toolchain(headers=[name]), tmp_path / "child")
    assert {path.name for path in cache.headers_folder.iterdir()} == {"next.h.gch", "last.h.gch"}
    assert cache.find(machine_of(READY)) is None


def test_a_compiler_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(toolchain, "_LONGEST_ANSWER_SECONDS", 0.1)
    assert toolchain.compiler_version() == str(compiler)


def handed_on(folder: Path) -> ToolchainRecord:
    """What a machine hands on that has found it out."""
    cache = cache_with(folder, READY)
    known = cache.find(machine_of(READY))
    assert known is not None
    record = cache.record_of(machine_of(READY), known)
    assert record is not None
    return record


def another_machine(folder: Path) -> ToolchainCache:
    cache = ToolchainCache(folder / "other")
    cache.prepare()
    return cache


def test_another_machine_of_the_image_has_it_from_then_on(tmp_path: Path) -> None:
    record, other = handed_on(tmp_path), another_machine(tmp_path)
    taken = other.take(record)
    assert taken is not None
    assert taken == other.find(machine_of(READY)) == record.toolchain
    assert (other.headers_folder / "some.h.gch").read_bytes() == b"precompiled"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"content": b"not compressed"}, id="not compressed"),
        pytest.param({"content": zlib.compress(b"precompiled")[:-6]}, id="broken off"),
        pytest.param({"content": zlib.compress(bytes(100_000))}, id="larger than it says"),
        pytest.param({"size_bytes": 2**40}, id="too large"),
        pytest.param({"name": "../toolchain-x"}, id="outside of the folder"),
    ],
)
def test_damaged_headers_are_not_taken(tmp_path: Path, damage: dict[str, Any]) -> None:
    record, other = handed_on(tmp_path), another_machine(tmp_path)
    (header,) = record.headers
    for field, value in damage.items():
        setattr(header, field, value)
    assert other.take(record) is None
    assert other.find(machine_of(READY)) is None
    assert [path for path in (tmp_path / "other").rglob("*") if path.is_file()] == []


def test_what_cannot_be_read_any_more_is_not_handed_on(tmp_path: Path) -> None:
    cache = cache_with(tmp_path, READY)
    known = cache.find(machine_of(READY))
    (cache.headers_folder / "some.h.gch").unlink()
    assert known is not None
    assert cache.record_of(machine_of(READY), known) is None
