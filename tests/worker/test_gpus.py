"""How many GPUs an interpreter has, by drivers that answer in ways of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = """
int cuInit(unsigned int flags) { return %d; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
"""


def _count(folder: Path, *, cuda: str | None, init: int | None) -> subprocess.CompletedProcess[str]:
    """The program beside a torch for such a CUDA and a driver that answers `init`; None: there is no driver."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('torch was imported')")
    (package / "version.py").write_text(f"cuda = {cuda!r}")
    if init is not None:
        command = ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(folder / "libcuda.so.1")]
        subprocess.run(command, input=_DRIVER % init, text=True, check=True)
    return subprocess.run(
        [sys.executable, "-m", "compilefarm.worker.gpus"],
        env={**os.environ, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("cuda", "init", "expected"),
    [
        pytest.param("12.8", 0, 2, id="two"),
        pytest.param("12.8", 100, 0, id="the driver has none, or shows none"),
        pytest.param(None, 0, 0, id="a torch for the CPU"),
    ],
)
def test_number_of_gpus(tmp_path: Path, cuda: str | None, init: int | None, expected: int) -> None:
    counted = _count(tmp_path, cuda=cuda, init=init)
    assert (counted.stdout, counted.stderr) == (f"{expected}\n", "")


def test_without_a_driver(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    assert _count(tmp_path, cuda="12.8", init=None).stdout == "0\n"


def test_a_driver_that_does_not_work(tmp_path: Path) -> None:
    counted = _count(tmp_path, cuda="12.8", init=803)
    assert counted.returncode == 1
    assert "error 803" in counted.stderr
