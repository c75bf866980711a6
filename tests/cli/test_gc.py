"""`compilefarm gc`, and the sizes that it and `serve` are given."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

import pytest

from compilefarm.core.cache_entries import describe
from compilefarm.serving.sizes import size
from compilefarm.store.opening import open_caches, open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.store.uses import LEASE_SECONDS
from compilefarm.v1.cache_service_pb2 import TorchCache
from tests.cli.commands import run_command


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with two artifacts, the first of them older."""

    async def fill() -> None:
        store = await open_store(str(tmp_path))
        for name in ("first", "second"):
            artifact = sample_artifact(sample_key(name), program=name.encode() * 1000, libraries=[])
            await store.put_artifact(artifact.manifest, blobs=artifact.blobs)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(fill())
    first_graph = sample_key("first").partition("-")[2]
    for place in tmp_path.rglob("*"):
        if place.is_file():
            age = LEASE_SECONDS * (3 if first_graph in str(place) else 2)
            changed = place.stat().st_mtime - age
            os.utime(place, (changed, changed))
    return tmp_path


def keys(directory: Path) -> list[str]:
    return sorted(place.name for place in directory.glob("ac/*/*"))


def rest(name: str) -> str:
    return sample_key(name).partition("-")[2]


def test_says_what_would_go_and_takes_it_when_told(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["gc", "--store", str(directory), "--size-limit", "12kB"]
    assert run_command(*command, "--dry-run") == 0
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()][:2] == [["would", "go", "1", "artifacts"], ["1", "blobs"]]
    assert keys(directory) == sorted([rest("first"), rest("second")])
    assert run_command(*command, "--json") == 0
    collected = json.loads(capsys.readouterr().out)
    assert (collected["artifacts"], collected["blobs"]) == (1, 1)
    assert collected["size_bytes"] <= 12_000
    assert keys(directory) == [rest("second")]


def test_without_a_limit_every_artifact_stays(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("gc", "--store", str(directory), "--json") == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 0
    assert len(keys(directory)) == 2


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("gc", "--store", str(tmp_path / "typo")) == 1
    assert f"compilefarm gc: the store directory {tmp_path / 'typo'} cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0B", 0), ("812 B", 812), ("1.5kB", 1500), ("50GB", 50 * 10**9), ("1TiB", 2**40), ("0.3MB", 300_000)],
)
def test_reads_sizes(text: str, size_bytes: int) -> None:
    assert size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "50", "GB", "-1GB", "1e3GB", "50 gb", "50G", "٣GB", "1.GB"])
def test_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write it like"):
        size(text)


def test_entries_of_caches_go_only_when_that_is_asked_for(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def fill() -> None:
        store = await open_caches(str(directory), size_limit_bytes=10**6, lifetime_seconds=10**6)
        for key in ("old", "new"):
            entry = describe(key.encode() * 1000, cache=TorchCache.TORCH_CACHE_FX_GRAPH, key=key)
            async with store.staging(entry.digest) as blob:
                await blob.write(key.encode() * 1000)
                await store.put(entry, blob)

    def stored() -> int:
        return len(list(directory.glob("caches/entries/*/*/*")))

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(fill())
    path = next(path for path in directory.glob("caches/entries/*/*/*") if path.read_bytes().startswith(b"old"))
    os.utime(path, (path.stat().st_mtime - 3 * 86_400,) * 2)
    command = ["gc", "--store", str(directory), "--json"]
    assert run_command(*command) == 0
    assert "caches" not in json.loads(capsys.readouterr().out)
    assert run_command(*command, "--cache-lifetime", "2", "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["caches"]["entries"] == 1
    assert stored() == 2
    assert run_command(*command, "--cache-lifetime", "2") == 0
    assert stored() == 1
    assert not path.exists()
    assert run_command(*command[:-1], "--cache-size-limit", "1kB") == 0
    assert "1 entries" in capsys.readouterr().out
    assert stored() == 0
