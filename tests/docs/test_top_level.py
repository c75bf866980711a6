"""What a stranger sees first: the folders and documents of the project, and nothing that somebody left there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {".ci", "client", "deploy", "docs", "proto", "requirements", "service", "tests", "worker"}
DOCUMENTS = {"ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"}
TOOLS = {".gitignore", "dev.py", "pyproject.toml"}


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_nothing_else_is_tracked() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip(f"these files are no checkout of this user: {tracked.stderr.strip()}")
    assert {name.partition("/")[0] for name in tracked.stdout.split("\0") if name} == FOLDERS | DOCUMENTS | TOOLS
