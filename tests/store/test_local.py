"""A store in a directory: opening, durability, kills, full disks and what a killed process leaves behind."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.layout import blob_path, manifest_path
from compilefarm.store.local import ABANDONED_AFTER_SECONDS
from compilefarm.store.opening import open_store
from compilefarm.store.testing import sample_artifact, sample_key

KEY = sample_key("job")
KILLED_WRITER = Path(__file__).parent / "killed_writer.py"


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    artifact = sample_artifact(KEY)
    before = await open_store(str(tmp_path))
    await before.put_artifact(artifact.manifest, blobs=artifact.blobs)
    after = await open_store(str(tmp_path))
    assert await after.find_manifest(KEY) == artifact.manifest
    assert await after.usage() == await before.usage()
    assert (await after.usage()).location == str(tmp_path)


async def test_makes_the_directory_and_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = await open_store("~/farm/store")
    await store.put_blob(b"content", digest=digest_of(b"content"))
    assert (tmp_path / "farm/store" / blob_path(digest_of(b"content"))).read_bytes() == b"content"


async def test_leaves_nothing_of_its_trial_write(tmp_path: Path) -> None:
    await open_store(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "why"), [("file", "File exists"), ("file/below", "Not a directory")])
async def test_a_place_that_cannot_be_a_directory_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match=f"{tmp_path / name} cannot be used: {why}; name a directory"):
        await open_store(str(tmp_path / name))


@pytest.mark.parametrize("location", ["", "s3://bucket/prefix", "file:///tmp/store", "memory:store"])
async def test_a_location_of_another_kind_is_refused_with_what_is_supported(location: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"name a directory, or 'memory:'"):
        await open_store(location)


async def test_a_directory_that_went_away_is_unavailable_and_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = await open_store(str(root))
    shutil.rmtree(root)
    root.write_text("in the way")
    with pytest.raises(StoreUnavailable, match=f"{root} could not .*Not a directory"):
        await store.put_blob(b"content", digest=digest_of(b"content"))
    with pytest.raises(StoreUnavailable, match=f"{root} could not .*Not a directory"):
        await store.find_manifest(KEY)


@pytest.mark.parametrize("step", range(4))
async def test_a_kill_during_a_write_leaves_a_miss_or_the_whole_artifact(tmp_path: Path, step: int) -> None:
    command = [sys.executable, KILLED_WRITER, tmp_path, str(step)]
    writer = await asyncio.to_thread(subprocess.run, command, check=False)
    assert writer.returncode == -signal.SIGKILL
    artifact = sample_artifact(KEY)
    store = await open_store(str(tmp_path))
    # The third write is the manifest's: every blob is there before it, and the artifact after it.
    assert await store.find_manifest(KEY) == (artifact.manifest if step == 3 else None)
    assert (await store.find_missing(list(artifact.blobs)) == []) == (step >= 2)
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.find_manifest(KEY) == artifact.manifest


async def test_sweeps_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    digest = digest_of(b"content")
    store = await open_store(str(tmp_path))
    await store.put_blob(b"content", digest=digest)
    blob, manifest = blob_path(digest), manifest_path(KEY, variant=0)
    names = {
        f"{blob}#1": True,
        f"{manifest}#12": True,
        f"{blob}#2": False,
        f"{blob}.backup#3": True,
        "notes#1": True,
    }
    for name, old in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"half of the cont")
        age = 2 * ABANDONED_AFTER_SECONDS if old else ABANDONED_AFTER_SECONDS / 2
        changed = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (changed, changed))
    store = await open_store(str(tmp_path))
    assert [name for name in names if (tmp_path / name).exists()] == [f"{blob}#2", f"{blob}.backup#3", "notes#1"]
    assert await store.get_blob(digest) == b"content"


async def test_writes_while_another_process_has_a_staging_file_of_that_name(tmp_path: Path) -> None:
    digest = digest_of(b"content")
    staging = tmp_path / f"{blob_path(digest)}#1"
    staging.parent.mkdir(parents=True)
    staging.write_bytes(b"half of the cont")
    store = await open_store(str(tmp_path))
    await store.put_blob(b"content", digest=digest)
    assert await store.get_blob(digest) == b"content"
    assert (await store.usage()).blobs == 1


async def test_flushes_the_file_and_every_folder_above_before_it_acknowledges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(str(tmp_path))
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(Path(f"/proc/self/fd/{descriptor}").resolve()))
    await store.put_blob(b"content", digest=digest_of(b"content"))
    blob = tmp_path / blob_path(digest_of(b"content"))
    assert flushed == [blob, blob.parent, blob.parent.parent, tmp_path]


async def test_a_disk_that_cannot_flush_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = await open_store(str(tmp_path))
    monkeypatch.setattr(os, "fsync", fail)
    artifact = sample_artifact(KEY)
    with pytest.raises(StoreUnavailable, match=f"{tmp_path} could not flush .*Input/output error"):
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert await store.find_manifest(KEY) is None
