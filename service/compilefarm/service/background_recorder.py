"""Records requests in the background, for prewarming. No request waits for it or fails of it, and no caller takes more
than its share of the recording."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from compilefarm.core.errors import (
    Busy,
    InvalidRequest,
    MissingBlobs,
    StoreUnavailable,
    UnusableRecording,
    UnusableRequestFile,
)
from compilefarm.core.recorder import Note, Recorder
from compilefarm.core.recordings import MANIFEST, words_of
from compilefarm.core.requests import Request
from compilefarm.service.allowances import Allowance
from compilefarm.service.clock import Clock
from compilefarm.service.constants import read_constants
from compilefarm.service.incidents import log_failure
from compilefarm.service.rarely import Rarely
from compilefarm.service.requests import AdmittedRequest
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.v1.job_pb2 import Job

log = logging.getLogger(__name__)

# Of recording.json, which is read and written whole each time, and of requests and the tensors of their graphs.
MOST_WORDS_BYTES = 8 * 1024 * 1024
MOST_CONTENT_BYTES = 1024 * 1024 * 1024
# An account may have one of so many equal parts of these.
_PARTS = 4
# Requests that wait to be recorded are held in memory.
_WAITING_BYTES_OF_ACCOUNT = 64 * 1024 * 1024
_WAITING_BYTES = 256 * 1024 * 1024
# What is recorded together; recording.json is written once for all of it.
_MOST_TOGETHER = 100
_MOST_TENSOR_BYTES_TOGETHER = 64 * 1024 * 1024
# How long the disk, and Python's lock, are left to others after a write, in multiples of what it took.
_REST = 4.0
# At least as deep as recording.json is indented.
_INDENT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A request that waits to be recorded.

    Attributes:
        job: what was asked for.
        account: of the caller.
        position: among those that this process has noted.
        release: to be called when it waits no more.
    """

    job: Job
    account: str
    position: int
    release: Callable[[], None]


class BackgroundRecorder:
    """Records requests, those that have come meanwhile together.

    Args:
        folder: of the recording.
        store: holds the tensors of graphs.
        clock: time.

    Raises:
        UnusableRecording: nothing can be recorded in that folder.
    """

    def __init__(self, folder: Path, *, store: ArtifactStore, clock: Clock) -> None:
        self._recorder = Recorder(folder)
        self._store = store
        words, contents = _sizes(folder)
        self._words = _Room(MOST_WORDS_BYTES, used_bytes=words)
        self._contents = _Room(MOST_CONTENT_BYTES, used_bytes=contents)
        self._memory = Allowance(account_bytes=_WAITING_BYTES_OF_ACCOUNT, all_bytes=_WAITING_BYTES)
        self._waiting: deque[_Waiting] = deque()
        self._positions = itertools.count()
        self._told = Rarely(clock.monotonic)
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, request: AdmittedRequest) -> None:
        """Has a request recorded soon; one for which there is no room is missing from the recording."""
        position, account = next(self._positions), request.caller.account
        held = ExitStack()
        try:
            held.enter_context(self._memory.using(account))(request.held_bytes)
        except Busy as error:
            held.close()
            self._tell_missing(account, error)
            return
        self._waiting.append(_Waiting(job=request.job, account=account, position=position, release=held.close))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting(), name="recording")
            self._writing.add_done_callback(log_failure)

    async def close(self) -> None:
        """Records what waits."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            started = loop.time()
            with ExitStack() as held:
                notes = await self._take(held)
                await self._write(notes)
            await self._rest((loop.time() - started) * _REST)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _take(self, held: ExitStack) -> list[tuple[str, Note]]:
        """The requests that are recorded next, each with the account of its caller."""
        notes: list[tuple[str, Note]] = []
        tensor_bytes = 0
        while self._waiting and len(notes) < _MOST_TOGETHER and tensor_bytes < _MOST_TENSOR_BYTES_TOGETHER:
            waiting = self._waiting.popleft()
            held.callback(waiting.release)
            request = Request(job=waiting.job, blobs=await self._tensors_of(waiting.job))
            tensor_bytes += sum(map(len, request.blobs.values()))
            notes.append((waiting.account, Note(request=request, position=waiting.position)))
        return notes

    async def _tensors_of(self, job: Job) -> dict[str, bytes]:
        try:
            return await read_constants(job, store=self._store)
        except (InvalidRequest, MissingBlobs, StoreUnavailable):
            # Who only looks up sends no tensors; and what the store cannot tell now is recorded without.
            return {}

    async def _write(self, notes: list[tuple[str, Note]]) -> None:
        try:
            await asyncio.to_thread(lambda: self._recorder.note_requests(self._fitting(notes)))
        except (UnusableRecording, UnusableRequestFile) as error:
            self._tell_missing("", error)

    def _fitting(self, notes: list[tuple[str, Note]]) -> Iterator[Note]:
        """Those for which there is room, and those that are recorded already and only counted."""
        for account, note in notes:
            if self._recorder.has(note.request) or self._take_room(note.request, account=account):
                yield note
            else:
                self._tell_missing(account, "its caller, or all together, have all the room that callers have in it")

    def _take_room(self, request: Request, *, account: str) -> bool:
        words = len(json.dumps(words_of(request), indent=_INDENT))
        content = request.job.ByteSize() + sum(map(len, request.blobs.values()))
        if not (self._words.has(words, account=account) and self._contents.has(content, account=account)):
            return False
        self._words.take(words, account=account)
        self._contents.take(content, account=account)
        return True

    def _tell_missing(self, account: str, why: object) -> None:
        if self._told.is_due(account):
            log.error("a request of %s is missing from the recording: %s", account or "this farm", why)


class _Room:
    """Bytes of a recording, of which an account may have a part.

    Args:
        most_bytes: of all.
        used_bytes: at the beginning.
    """

    def __init__(self, most_bytes: int, *, used_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used_bytes = used_bytes
        self._of_account: Counter[str] = Counter()

    def has(self, size_bytes: int, *, account: str) -> bool:
        """Returns whether there is so much room for an account."""
        own_bytes = self._of_account[account] + size_bytes
        return self._used_bytes + size_bytes <= self._most_bytes and own_bytes <= self._most_bytes // _PARTS

    def take(self, size_bytes: int, *, account: str) -> None:
        """Takes so much of it for an account."""
        self._used_bytes += size_bytes
        self._of_account[account] += size_bytes


def _sizes(folder: Path) -> tuple[int, int]:
    """Bytes of recording.json, and of all else in a recording."""
    words = (folder / MANIFEST).stat().st_size
    return words, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) - words
