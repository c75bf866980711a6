"""Writes recordings. Any number of processes and threads may record into one folder at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compilefarm.core.errors import UnusableRecording
from compilefarm.core.recorded_packages import (
    PACKAGES,
    Unpublished,
    content_of_package,
    file_of_package,
    words_of_package,
)
from compilefarm.core.recordings import (
    MANIFEST,
    REQUESTS,
    TENSORS,
    Outline,
    RecordedBypass,
    file_of,
    outline_text,
    read_outline,
    words_of,
)
from compilefarm.core.requests import Request, pack_request
from compilefarm.v1.package_pb2 import SignedPackage

# What is being written. One at a time writes, so what a killed process left is written over.
_UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A request that is to be recorded.

    Attributes:
        request: it, with the tensors that its graph holds.
        name: what torch.compile(name=) called it.
        position: among the graphs of this process.
    """

    request: Request
    name: str = ""
    position: int


class Recorder:
    """Adds to the recording in a folder.

    Args:
        folder: made if it is not there.
        tensors: whether the tensors that graphs hold are kept; without them a farm has to have them already.

    Raises:
        UnusableRecording: the folder cannot be written, or holds a recording that cannot be read.
    """

    def __init__(self, folder: Path, *, tensors: bool = True) -> None:
        self._folder = folder
        self._tensors = tensors
        with self._writing():
            outline = self._read()
            self._write(MANIFEST, outline_text(outline).encode())

    def has(self, request: Request) -> bool:
        """Returns whether a request is recorded, so that noting it once more only counts it."""
        return (self._folder / file_of(request)).exists()

    def note_request(self, request: Request, *, name: str, position: int) -> None:
        """Records a request.

        Args:
            request, name, position: see Note.

        Raises:
            As `note_requests`.
        """
        self.note_requests([Note(request=request, name=name, position=position)])

    def note_requests(self, notes: Iterable[Note]) -> None:
        """Records requests, and writes recording.json once for all of them.

        Raises:
            UnusableRecording: they cannot be written.
            UnusableRequestFile: one is too large for a file.
        """
        with self._writing():
            outline = self._read()
            requests = dict(outline.requests)
            lacks_tensors = False
            for note in notes:
                file, request = file_of(note.request), note.request
                if not (self._folder / file).exists():
                    self._write(file, pack_request(replace(request, blobs={})))
                if self._tensors:
                    self._write_tensors(request)
                recorded = {"first": note.position, "count": 1, "name": note.name, **words_of(request)}
                requests[file] = _added(requests.get(file), recorded)
                lacks_tensors |= bool(request.missing_digests())
            holds_tensors = outline.holds_tensors and not lacks_tensors
            outline = replace(outline, requests=requests, holds_tensors=holds_tensors)
            self._write(MANIFEST, outline_text(outline).encode())

    def note_bypass(self, bypass: RecordedBypass) -> None:
        """Records that a graph was not sent to a farm, and why.

        Raises:
            UnusableRecording: it cannot be written.
        """
        with self._writing():
            outline = self._read()
            same = [each for each in outline.bypasses if _identity(each) == _identity(bypass)]
            others = [each for each in outline.bypasses if _identity(each) != _identity(bypass)]
            for each in same:
                bypass = replace(bypass, first=min(each.first, bypass.first), count=each.count + bypass.count)
            self._write(MANIFEST, outline_text(replace(outline, bypasses=[*others, bypass])).encode())

    def note_package(self, package: SignedPackage, *, function: str) -> None:
        """Records a package of Dynamo, signed. One that says the same to hold is replaced.

        Args:
            package: it.
            function: the qualified name of its function.

        Raises:
            UnusableRecording: it cannot be written.
        """
        file, content = file_of_package(package), content_of_package(package)
        with self._writing():
            (self._folder / PACKAGES).mkdir(exist_ok=True)
            outline = self._read()
            self._write(file, content)
            packages = {**outline.packages, file: words_of_package(content, function=function)}
            self._write(MANIFEST, outline_text(replace(outline, packages=packages)).encode())

    def note_unpublished(self, unpublished: Unpublished) -> None:
        """Records that a function has no package, and why.

        Raises:
            UnusableRecording: it cannot be written.
        """
        with self._writing():
            outline = self._read()
            known = dict.fromkeys((*outline.unpublished, unpublished))
            self._write(MANIFEST, outline_text(replace(outline, unpublished=tuple(known))).encode())

    def _read(self) -> Outline:
        outline = read_outline(self._folder) or Outline(requests={})
        return replace(outline, holds_tensors=outline.holds_tensors and self._tensors)

    def _write_tensors(self, request: Request) -> None:
        for digest, content in request.blobs.items():
            if not (self._folder / TENSORS / digest).exists():
                self._write(f"{TENSORS}/{digest}", content)

    def _write(self, name: str, content: bytes) -> None:
        unfinished = self._folder / _UNFINISHED
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._folder / name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keeps other processes, and other threads, from writing meanwhile."""
        try:
            for below in (REQUESTS, TENSORS):
                (self._folder / below).mkdir(parents=True, exist_ok=True)
            # The folder is its own lock: nothing of it stays behind in the recording.
            lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise UnusableRecording(f"the recording {self._folder} cannot be written: {error.strerror}") from error


def _added(known: Any, recorded: dict[str, Any]) -> dict[str, Any]:
    if known is None:
        return recorded
    # Whoever is first to write, the same is written.
    first, name = min((known["first"], known["name"]), (recorded["first"], recorded["name"]))
    return {**recorded, "first": first, "name": name, "count": known["count"] + recorded["count"]}


def _identity(bypass: RecordedBypass) -> tuple[object, ...]:
    return bypass.reason, bypass.message, bypass.name, bypass.nodes
