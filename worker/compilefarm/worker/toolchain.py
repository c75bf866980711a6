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
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError

from compilefarm.core.environments import narrowed
from compilefarm.v1.child_pb2 import ChildReady, Toolchain
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.gateways_pb2 import PackedHeader, ToolchainRecord

log = logging.getLogger(__name__)

# Of the records; those of another one are not read.
_FORMAT = "3"
_LONGEST_UNUSED_SECONDS = 30 * 24 * 3600
# A header and what was precompiled of it are two; the latter has 120 to 160 MB.
_MOST_HEADERS = 32
# What is taken from others has at most so much, uncompressed.
_MOST_HEADER_BYTES = 512 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
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

    def find(self, machine: str) -> Toolchain | None:
        """Returns what is known about a machine and image (see `machine_of`); None if nothing is, or if a part is
        missing.
        """
        path = self._path(machine)
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

    def keep(self, machine: str, toolchain: Toolchain, built_in: Path) -> Toolchain:
        """Keeps what was found out and built, as far as the folder can be written.

        Args:
            machine: on which machine and image a child has found it out.
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
            self._write(machine, kept)
        except OSError as error:
            log.warning("cannot keep what is known of the C++ compiler in %s: %s", self._folder, error)
        return kept

    def record_of(self, machine: str, toolchain: Toolchain) -> ToolchainRecord | None:
        """What was kept here, for other machines that are alike; None if it cannot be read any more."""
        record = ToolchainRecord(machine=machine, toolchain=toolchain)
        try:
            for name in toolchain.headers:
                record.headers.append(_packed(self.headers_folder / name))
        except OSError as error:
            log.warning("cannot hand on what is known of the C++ compiler: %s", error)
            return None
        return record

    def take(self, record: ToolchainRecord) -> Toolchain | None:
        """Keeps what another worker has found out and built on a machine that is alike.

        Returns:
            It, with the headers that came along; None if it cannot be used.
        """
        taken = Toolchain(trials=record.toolchain.trials)
        try:
            for header in record.headers:
                self._take_header(header)
                taken.headers.append(header.name)
            # Without its headers it is worth less than what the next start would find.
            if list(taken.headers) == list(record.toolchain.headers):
                self._write(record.machine, taken)
        except (OSError, ValueError, zlib.error) as error:
            log.warning("what another worker has found out about the C++ compiler cannot be used: %s", error)
            return None
        return taken

    def _take_header(self, header: PackedHeader) -> None:
        if Path(header.name).name != header.name or header.size_bytes > _MOST_HEADER_BYTES:
            raise ValueError(f"{header.name[:100]!r} is not the name of a header, or too large")
        with _replacing(self.headers_folder / header.name) as file:
            size_bytes = _unpack(header.content, file, most_bytes=header.size_bytes)
            if size_bytes != header.size_bytes:
                raise ValueError(f"the header {header.name} has {size_bytes} of {header.size_bytes} bytes")

    def _write(self, machine: str, toolchain: Toolchain) -> None:
        with _replacing(self._path(machine)) as file:
            file.write(toolchain.SerializeToString())
        self._forget_headers()

    def _forget_headers(self) -> None:
        """Removes headers of compilers and releases that nobody has used for long, or that many came after."""
        used = {path: path.stat().st_mtime for path in self.headers_folder.iterdir()}
        latest = sorted(used, key=used.__getitem__, reverse=True)
        for path in latest:
            if path in latest[_MOST_HEADERS:] or used[path] < time.time() - _LONGEST_UNUSED_SECONDS:
                path.unlink(missing_ok=True)

    def _path(self, machine: str) -> Path:
        return self._folder / f"toolchain-{machine}"


def machine_of(ready: ChildReady) -> str:
    """Names the machine and image of a child as far as they decide what its C++ compiler can do and builds: processor,
    torch, compiler, and how that is called.
    """
    environment = narrowed(ready.environment, wanted=Environment())
    words = [compiler_version(), ready.build_command, _FORMAT]
    facts = environment.SerializeToString(deterministic=True) + "\n".join(words).encode()
    return hashlib.sha256(facts).hexdigest()


def _packed(path: Path) -> PackedHeader:
    packing, size_bytes, pieces = zlib.compressobj(level=1), 0, []
    with path.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            size_bytes += len(piece)
            pieces.append(packing.compress(piece))
    return PackedHeader(name=path.name, content=b"".join([*pieces, packing.flush()]), size_bytes=size_bytes)


def _unpack(content: bytes, file: IO[bytes], *, most_bytes: int) -> int:
    """Writes what was packed, and no more than so much. Returns how much there was."""
    unpacking, size_bytes, left = zlib.decompressobj(), 0, content
    while left and size_bytes <= most_bytes:
        piece = unpacking.decompress(left, _PIECE_BYTES)
        if not piece and not unpacking.unconsumed_tail:
            break
        size_bytes += file.write(piece)
        left = unpacking.unconsumed_tail
    return size_bytes


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
