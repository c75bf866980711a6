"""A farm that is started in a folder in which others may write runs nothing that lies there."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from compilefarm.core.errors import StoreUnavailable
from compilefarm.serving.pools import cuda_devices
from compilefarm.store.s3 import open_bucket

ROOT = Path(__file__).resolve().parents[2]
# Children begin in a folder that was made for them, trials of a sandbox in the root; the last is for tests.
IN_FOLDERS_OF_THEIR_OWN = {"pool.py", "sandbox.py", "testing.py"}
# What every program of ours imports, at some time.
PLANTED = ("argparse", "asyncio", "ctypes", "importlib", "json", "obstore", "runpy", "socket", "subprocess", "torch")


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is planted leaves a note when it runs."""
    note = tmp_path / "note"
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(note)!r}, 'a').write('{name}\\n')\nraise SystemExit('planted')\n"
        )
    monkeypatch.chdir(tmp_path)
    return note


async def test_a_bucket_is_asked_by_what_is_installed(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilefarm.store.s3.RETRY_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "farm")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(StoreUnavailable, match="could not look for ac/object"):
        await open_bucket("s3://farm?endpoint=http://127.0.0.1:1&region=us-east-1").find_object("ac/object")
    assert not planted.exists()  # noqa: ASYNC240


def test_gpus_are_looked_for_by_what_is_installed(planted: Path) -> None:
    # Where there is no torch, it says so.
    with suppress(RuntimeError):
        cuda_devices("auto", python=sys.executable)
    assert not planted.exists()


def test_interpreters_are_tried_with_what_is_installed(planted: Path) -> None:
    trials = pytest.importorskip("compilefarm.cluster.trials")
    trials._problem(sys.executable)
    assert not planted.exists()


def test_no_program_is_started_that_looks_for_modules_where_it_is_started() -> None:
    started = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("client", "proto", "service", "worker")
        for path in (ROOT / folder / "compilefarm").rglob("*.py")
        if path.name not in IN_FOLDERS_OF_THEIR_OWN
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r'"-[mc]",', line) and not re.search(r'"-[PI]",', line)
    ]
    assert started == []
