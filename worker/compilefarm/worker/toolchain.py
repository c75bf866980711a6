"""Caches what the C++ compiler of this machine can do, once per machine rather than once per process."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError

from compilefarm.core.environments import narrowed
from compilefarm.v1.child_pb2 import ChildReady, Toolchain
from compilefarm.v1.environment_pb2 import Environment

log = logging.getLogger(__name__)

# Of the records; those of another one are not read.
_FORMAT = "3"
_LONGEST_UNUSED_SECONDS = 30 * 24 * 3600
# A header and what was precompiled of it are two; the latter has 120 to 160 MB.
_MOST_HEADERS = 32
# A compiler may lie on a file system that does not answer.
_LONGEST_ANSWER_SECONDS = 20


class ToolchainCache:
    """Keeps what was found out and built in a folder, by machine, torch, compiler, and how that is called: its flags
    follow from where torch lies and from what this release of Compilefarm sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.headers_folder = folder / "headers"

    def prepare(self) -> None:
        """Makes the folder. One that cannot be made costs each start the same trials, and each compile its headers."""
        try:
            self.headers_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("cannot keep what is known of the C++ compiler in %s: %s", self._folder, error)

    def find(self, ready: ChildReady) -> Toolchain | None:
        """Returns what is known about the machine of a child; None if nothing is, or if a part is missing."""
        path = self._path(ready)
        if not path.exists():
            return None
        try:
            known = Toolchain.FromString(path.read_bytes())
            for name in known.headers:
                os.utime(self.headers_folder / name)
        except (OSError, DecodeError) as error:
            log.warning("%s cannot be used (%s); the C++ compiler is tried again", path, error)
            return None
        return known

    def keep(self, ready: ChildReady, toolchain: Toolchain, built_in: Path) -> Toolchain:
        """Keeps what was found out and built, as far as the folder can be written.

        Args:
            ready: what the child said of itself that found it out.
            toolchain: as that child said it.
            built_in: the folder of that child.

        Returns:
            It, with the headers that were kept.
        """
        kept = Toolchain(trials=toolchain.trials)
        try:
            for header in map(Path, toolchain.headers):
                _copy(built_in / header, self.headers_folder / header.name)
                kept.headers.append(header.name)
            with _replacing(self._path(ready)) as file:
                file.write(kept.SerializeToString())
            self._forget_headers()
        except OSError as error:
            log.warning("cannot keep what is known of the C++ compiler in %s: %s", self._folder, error)
        return kept

    def _forget_headers(self) -> None:
        """Removes headers of compilers and releases that nobody has used for long, or that many came after."""
        used = {path: path.stat().st_mtime for path in self.headers_folder.iterdir()}
        latest = sorted(used, key=used.__getitem__, reverse=True)
        for path in latest:
            if path in latest[_MOST_HEADERS:] or used[path] < time.time() - _LONGEST_UNUSED_SECONDS:
                path.unlink(missing_ok=True)

    def _path(self, ready: ChildReady) -> Path:
        machine = narrowed(ready.environment, wanted=Environment())
        words = [compiler_version(), ready.build_command, _FORMAT]
        facts = machine.SerializeToString(deterministic=True) + "\n".join(words).encode()
        return self._folder / f"toolchain-{hashlib.sha256(facts).hexdigest()}"


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as content, _replacing(target) as file:
        shutil.copyfileobj(content, file)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes a place when it is complete, or is gone."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            yield file
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def compiler_version() -> str:
    """Returns the version text of the C++ compiler; empty if there is none."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        return ""
    try:
        result = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=False, timeout=_LONGEST_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s does not say what it is: %s", compiler, error)
        return compiler
    return f"{compiler}\n{result.stdout}"
