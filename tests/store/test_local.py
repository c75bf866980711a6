"""A store in a directory: opening, durability, kills, full disks and what a killed process leaves behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store import files
from compilefarm.store.backend import WrappingBackend
from compilefarm.store.counting import CountingBackend
from compilefarm.store.layout import blob_path, manifest_path
from compilefarm.store.local import ABANDONED_AFTER_SECONDS, LOCK, LocalBackend
from compilefarm.store.opening import open_backend, open_store
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.store.uses import Uses

KEY = sample_key("job")
KILLED_WRITER = Path(__file__).parent / "killed_writer.py"


class PatientFile(FileIO):
    """Says of each write whether the file was closed meanwhile."""

    def __init__(self, path: Path, mode: str, *, begun: threading.Event) -> None:
        super().__init__(path, mode)
        self._begun, self._closing = begun, threading.Event()
        self.was_closed: list[bool] = []

    def write(self, content: Any) -> int:
        self._begun.set()
        self.was_closed.append(self._closing.wait(0.5))
        return super().write(content)

    def close(self) -> None:
        self._closing.set()
        super().close()


def staging_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if "#" in path.name]


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    artifact = sample_artifact(KEY)
    before = await open_store(str(tmp_path))
    await before.put_artifact(artifact.manifest, blobs=artifact.blobs)
    after = await open_store(str(tmp_path))
    assert await after.find_manifest(KEY) == artifact.manifest
    assert await after.usage() == await before.usage()
    assert (await after.usage()).location == str(tmp_path)


async def test_a_file_stays_open_while_a_piece_is_written_of_who_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another file would have its number, and get the piece.
    begun, opened = threading.Event(), list[PatientFile]()

    def open_patiently(path: Path, mode: str) -> PatientFile:
        opened.append(PatientFile(path, mode, begun=begun))
        return opened[-1]

    async def send() -> None:
        async with files.staged(tmp_path, name="blob") as blob:
            await blob.write(b"content")

    monkeypatch.setattr(files, "FileIO", open_patiently)
    sending = asyncio.create_task(send())
    assert await asyncio.to_thread(begun.wait, 60)
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    assert opened[0].was_closed == [False]
    assert opened[0].closed
    assert staging_files(tmp_path) == []


async def test_what_is_written_counts_though_who_sent_it_has_gone(tmp_path: Path) -> None:
    written, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(WrappingBackend):
        async def create(self, path: str, *, content: bytes) -> bool:
            created = await super().create(path, content=content)
            written.set()
            await goes_on.wait()
            return created

    backend = CountingBackend(Slow(await open_backend(str(tmp_path))), areas=["blobs"])
    writing = asyncio.create_task(backend.create("blobs/one", content=b"content"))
    await written.wait()
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    goes_on.set()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "writing of blobs/one"))
    assert backend.size_bytes == len(b"content")


async def test_two_that_remove_one_object_keep_nobody_waiting(tmp_path: Path) -> None:
    backend = await open_backend(str(tmp_path))
    uses = Uses(backend, now=lambda: 1e9)
    await backend.create("blobs/one", content=b"content")
    os.utime(tmp_path / "blobs/one", (0, 0))
    assert sorted(await asyncio.gather(uses.end("blobs/one"), uses.end("blobs/one"))) == [False, True]
    async with uses.holding("blobs/one"):
        assert await backend.find("blobs/one") is None


async def test_makes_the_directory_and_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = await open_store("~/farm/store")
    await store.put_blob(b"content", digest=digest_of(b"content"))
    assert (tmp_path / "farm/store" / blob_path(digest_of(b"content"))).read_bytes() == b"content"


async def test_leaves_nothing_of_its_trial_write(tmp_path: Path) -> None:
    await open_store(str(tmp_path))
    assert os.listdir(tmp_path) == [LOCK]


@pytest.mark.parametrize(("name", "why"), [("file", "File exists"), ("file/below", "Not a directory")])
async def test_a_place_that_cannot_be_a_directory_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match=f"{tmp_path / name} cannot be used: {why}; name a directory"):
        await open_store(str(tmp_path / name))


@pytest.mark.parametrize("location", ["", "gs://bucket/prefix", "file:///tmp/store", "memory:store"])
async def test_a_location_of_another_kind_is_refused_with_what_is_supported(location: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"name a directory, s3://BUCKET/PREFIX, or 'memory:'"):
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


async def test_what_was_acknowledged_survives_a_kill_at_any_step_of_a_write(tmp_path: Path) -> None:
    command = [sys.executable, KILLED_WRITER, tmp_path]
    writers = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    ends = [json.loads(line) for line in writers.stdout.splitlines()]
    *killed, last = ends
    assert {end["code"] for end in killed} == {-signal.SIGKILL}
    assert {step for end in killed for step in end["before"]} >= {
        "before mkdir", "before open", "before fsync", "before link", "before unlink",
    }  # fmt: skip
    assert last["acknowledged"] == [digest_of(b"blob")] * 2 + [KEY] * 2
    artifact = sample_artifact(KEY)
    for number, end in enumerate(ends):
        root = tmp_path / str(number)
        store = await open_store(str(root))
        assert staging_files(root) == []
        found = await store.find_manifest(KEY)
        if KEY in end["acknowledged"]:
            assert found == artifact.manifest
        if digest_of(b"blob") in end["acknowledged"]:
            assert await store.get_blob(digest_of(b"blob")) == b"blob"
        if found is not None:
            assert {digest: await store.get_blob(digest) for digest in artifact.blobs} == artifact.blobs
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
        assert await store.find_manifest(KEY) == artifact.manifest
        usage = await store.usage()
        assert (usage.artifacts, usage.corrupt_blobs, usage.corrupt_manifests) == (1, 0, 0)


async def test_sweeps_only_what_is_old_while_another_service_has_the_store_open(tmp_path: Path) -> None:
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


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is flushed to disk, in order."""
    places: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: places.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return places


async def test_a_blob_is_flushed_before_it_is_seen_and_its_name_before_it_is_acknowledged(
    tmp_path: Path, flushed: list[Path]
) -> None:
    store = await open_store(str(tmp_path))
    flushed.clear()
    await store.put_blob(b"content", digest=digest_of(b"content"))
    blob = tmp_path / blob_path(digest_of(b"content"))
    staging, *others = flushed
    assert staging.name.startswith(f"{blob.name}#")
    assert others == [blob, blob.parent, blob.parent.parent, tmp_path]


async def test_what_another_process_wrote_is_flushed_before_it_is_acknowledged(
    tmp_path: Path, flushed: list[Path]
) -> None:
    artifact = sample_artifact(KEY)
    before = await open_store(str(tmp_path))
    await before.put_artifact(artifact.manifest, blobs=artifact.blobs)
    store = await open_store(str(tmp_path))
    flushed.clear()
    await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    assert {tmp_path / blob_path(digest) for digest in artifact.blobs} <= set(flushed)
    assert tmp_path / manifest_path(KEY, variant=0) in flushed


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_disk_that_fails_is_named_and_nothing_is_acknowledged_until_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    kept, late = sample_artifact(KEY), sample_artifact(sample_key("late"), program=b"late")
    store = await open_store(str(tmp_path))
    await store.put_artifact(kept.manifest, blobs=kept.blobs)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match=f"{tmp_path} could not write .*: {os.strerror(code)}; check"):
        await store.put_artifact(late.manifest, blobs=late.blobs)
    assert await store.find_manifest(late.manifest.key) is None
    assert await store.find_manifest(KEY) == kept.manifest
    assert staging_files(tmp_path) == []
    monkeypatch.undo()
    await store.put_artifact(late.manifest, blobs=late.blobs)
    assert await store.find_manifest(late.manifest.key) == late.manifest


async def test_a_name_that_is_given_back_the_moment_it_is_found_taken_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a gateway does that leases a key, and another that gives it back.
    mine, other = LocalBackend(tmp_path), LocalBackend(tmp_path)
    assert await other.create("leases/key", content=b"other")
    link = os.link

    def link_and_lose(source: Path, target: Path) -> None:
        try:
            link(source, target)
        except FileExistsError:
            target.unlink()
            with suppress(OSError):
                target.parent.rmdir()
            raise

    monkeypatch.setattr(os, "link", link_and_lose)
    assert await mine.create("leases/key", content=b"mine")
    assert await mine.find("leases/key") == b"mine"
    (tmp_path / "new").write_bytes(b"content")
    assert await mine.create_from("leases/key", file=tmp_path / "new")
    assert await mine.find("leases/key") == b"content"
    assert staging_files(tmp_path) == []


async def test_what_is_gone_has_nothing_to_lose(tmp_path: Path) -> None:
    await LocalBackend(tmp_path).settle("manifests/gone")


async def test_a_folder_that_is_removed_the_moment_it_is_found_there_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Path.mkdir asks whether what is there is a folder, and whoever removes what lies in one removes the folder.
    backend = LocalBackend(tmp_path)
    await backend.create("entries/key/one", content=b"one")
    is_folder, removed = Path.is_dir, list[Path]()

    def remove_first(path: Path, **options: bool) -> bool:
        if not removed and path == tmp_path / "entries/key":
            removed.append(path)
            shutil.rmtree(path)
        return is_folder(path, **options)

    monkeypatch.setattr(Path, "is_dir", remove_first)
    assert await backend.create("entries/key/two", content=b"two")
    assert removed
    assert await backend.find("entries/key/two") == b"two"


async def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    (tmp_path / "entries").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="could not write entries/one: File exists"):
        await backend.create("entries/one", content=b"one")
