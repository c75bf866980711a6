"""What killed farms leave on the disk is removed, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compilefarm.worker.scratch import ScratchFolder, remove_abandoned

_KILLED = """
import os, pathlib, signal, sys
from compilefarm.worker.scratch import ScratchFolder
(ScratchFolder(pathlib.Path(sys.argv[1])).path / "kernel.so").write_bytes(b"half a kernel")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """A folder of a process that was killed at this moment."""
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    (folder,) = tmp_path.iterdir()
    return folder


def test_what_a_killed_process_left_is_removed(abandoned: Path) -> None:
    remove_abandoned(abandoned.parent)
    assert not abandoned.exists()


def test_folders_in_use_stay(tmp_path: Path, abandoned: Path) -> None:
    used = ScratchFolder(tmp_path)
    os.utime(used.path.parent, (0, 0))
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [used.path.parent]
    used.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "stays"), [(0.0, True), (90.0, False), (-90.0, False)])
def test_a_folder_that_is_not_locked_yet_stays_for_a_minute(tmp_path: Path, seconds: float, stays: bool) -> None:
    new = tmp_path / "compilefarm-new-1"
    new.mkdir()
    os.utime(new, (time.time() - seconds,) * 2)
    remove_abandoned(tmp_path)
    assert new.exists() == stays


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    other = tmp_path / "compilefarm-child-link"
    target = tmp_path / "target"
    target.mkdir()
    other.symlink_to(target)
    os.utime(other, (0, 0), follow_symlinks=False)
    remove_abandoned(tmp_path)
    assert other.is_symlink()
    assert target.is_dir()


def test_nothing_is_left_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: int = 0o777) -> None:
        raise OSError(errno.ENOSPC, f"no room for {path} of mode {mode}")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="no room"):
        ScratchFolder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
