"""Copies of interpreters run as the interpreters do, or there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compilefarm.worker.interpreters import copy_in_memory


def test_a_copy_runs_as_the_interpreter_does() -> None:
    copy = copy_in_memory(sys.executable)
    assert copy is not None
    command = [sys.executable, "-c", "import sys, grpc; print(sys.prefix, sys.executable, grpc.__version__)"]
    said = [
        subprocess.run(command, executable=executable, capture_output=True, text=True, check=True).stdout
        for executable in (sys.executable, f"/proc/{os.getpid()}/fd/{copy}")
    ]
    os.close(copy)
    assert said[0] == said[1]


def test_a_copy_cannot_be_written() -> None:
    copy = copy_in_memory(sys.executable)
    assert copy is not None
    with pytest.raises(PermissionError):
        os.write(copy, b"planted")
    os.close(copy)


def test_what_starts_an_interpreter_or_runs_nothing_has_no_copy(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    assert [copy_in_memory(str(program)) for program in (script, tmp_path / "nothing", "/bin/false")] == [None] * 3
