"""What the C++ compiler of this machine can do, found out once per machine rather than once per process."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from google.protobuf.message import DecodeError

from compilefarm.core.environments import narrowed
from compilefarm.v1.child_pb2 import Toolchain
from compilefarm.v1.environment_pb2 import Environment

log = logging.getLogger(__name__)


class ToolchainCache:
    """Keeps results of trials in a folder, by machine, compiler and torch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, environment: Environment) -> Toolchain | None:
        """What is known about this machine; None if nothing is."""
        path = self._path(environment)
        if not path.exists():
            return None
        try:
            return Toolchain.FromString(path.read_bytes())
        except (OSError, DecodeError) as error:
            log.warning("%s cannot be read (%s); the C++ compiler is tried again", path, error)
            return None

    def keep(self, environment: Environment, toolchain: Toolchain) -> None:
        """Keeps what was found out. A folder that cannot be written costs the next start the same trials again."""
        path = self._path(environment)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(toolchain.SerializeToString())
            os.replace(file.name, path)
        except OSError as error:
            log.warning("cannot keep what is known of the C++ compiler in %s: %s", self._folder, error)

    def _path(self, environment: Environment) -> Path:
        machine = narrowed(environment, wanted=Environment())
        facts = machine.SerializeToString(deterministic=True) + compiler_version().encode()
        return self._folder / f"toolchain-{hashlib.sha256(facts).hexdigest()}"


def compiler_version() -> str:
    """What the C++ compiler says of itself; empty if there is none."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return ""
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return f"{compiler}\n{result.stdout}"
