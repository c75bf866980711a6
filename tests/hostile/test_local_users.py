"""Other users of the host: what a farm keeps on its disks is not for them, and they cannot keep it from the farm."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compilefarm.core.errors import StoreUnavailable
from compilefarm.service.config import CannotStart
from compilefarm.service.state_folder import using
from compilefarm.service.testing import Refused, calling, sample_job, serving
from compilefarm.store.local import LOCK, LocalBackend, open_directory
from compilefarm.store.s3 import open_bucket
from compilefarm.worker.gpu_lock import lock_file
from tests.hostile.callers import LOOPBACK, listing

# Nobody asks it for anything.
BUCKET = "s3://bucket?endpoint=https://127.0.0.1:1"
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can make what another user owns")


@pytest.fixture(autouse=True)
def _usual_rights() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for temporary files, in which everybody may make some."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder / f"compilefarm-{os.getuid()}"


def for_others(path: Path) -> int:
    return path.stat().st_mode & stat.S_IRWXO


def test_a_store_that_is_made_is_closed_to_others(tmp_path: Path) -> None:
    open_directory(str(tmp_path / "below" / "store"))
    assert not for_others(tmp_path / "below" / "store")


def test_others_cannot_lock_a_store_or_a_state(tmp_path: Path) -> None:
    # As folders are that somebody has made beforehand.
    store, state = tmp_path / "store", tmp_path / "state"
    for folder in (store, state):
        folder.mkdir()
        # As earlier releases made it.
        (folder / LOCK).touch(0o644)
    LocalBackend(store)
    with using(state):
        assert not for_others(store / LOCK)
        assert not for_others(state / LOCK)


def test_a_state_that_is_made_is_closed_to_others(tmp_path: Path) -> None:
    with using(tmp_path / "state"):
        assert not for_others(tmp_path / "state")


def test_others_cannot_lock_a_gpu(tmp_path: Path) -> None:
    file = lock_file(tmp_path, "GPU-0")
    assert file is not None
    assert not for_others(file)
    # As earlier releases made it.
    file.chmod(0o444)
    assert lock_file(tmp_path, "GPU-0") == file
    assert not for_others(file)


def test_whoever_waits_for_a_lock_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open(tmp_path / LOCK, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opening = threading.Thread(target=LocalBackend, args=(tmp_path,))
        with caplog.at_level(logging.WARNING):
            opening.start()
            give_up_seconds = time.monotonic() + 60
            while not caplog.messages and time.monotonic() < give_up_seconds:
                opening.join(0.01)
    opening.join()
    assert str(tmp_path / LOCK) in caplog.text


def test_what_is_on_its_way_to_a_bucket_is_closed_to_others(temporary: Path) -> None:
    # As earlier releases made it.
    temporary.mkdir(mode=0o755)
    assert open_bucket(BUCKET).staging == temporary
    assert not temporary.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_nothing_is_written_through_a_link_of_another(temporary: Path, tmp_path: Path) -> None:
    temporary.symlink_to(tmp_path)
    with pytest.raises(StoreUnavailable, match="no folder of this user"):
        _ = open_bucket(BUCKET).staging


@only_as_root
def test_nothing_is_written_to_a_folder_of_another(temporary: Path) -> None:
    temporary.mkdir(mode=0o777)
    os.chown(temporary, 65534, 65534)
    with pytest.raises(StoreUnavailable, match="no folder of this user"):
        _ = open_bucket(BUCKET).staging


@pytest.mark.parametrize("options", [("auth_file",), ("tls_certificate", "tls_key")])
async def test_what_everybody_may_change_says_nothing(tmp_path: Path, options: Sequence[str]) -> None:
    file = tmp_path / "file"
    file.write_text(listing({"one": "compile"}))
    file.chmod(0o646)
    files = dict.fromkeys(options, str(file))
    with pytest.raises(CannotStart, match=f"{file} may be changed by every user of this host: chmod o-w {file}"):
        async with serving(config=replace(LOOPBACK, **files)):
            pass


async def test_a_list_is_read_again_once_only_its_user_may_change_it(tmp_path: Path) -> None:
    file = tmp_path / "callers.toml"
    file.write_text(listing({"one": "compile"}))
    async with serving(config=replace(LOOPBACK, auth_file=str(file))) as gateway:
        async with calling(gateway.address, token="one") as calls:
            await calls.plan(sample_job())
        file.chmod(0o646)
        file.write_text(listing({"two": "compile"}))
        async with calling(gateway.address, token="two") as calls:
            with pytest.raises(Refused, match="does not know the token"):
                await calls.plan(sample_job())
            file.chmod(0o644)
            await calls.plan(sample_job())
