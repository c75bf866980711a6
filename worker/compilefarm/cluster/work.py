"""A piece of work of a worker: it goes on until it is done or ended, whether its gateway listens or is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from compilefarm.cluster.parts import PIECE_BYTES
from compilefarm.core.contents import Content
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import FarmError, WorkerLost
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.v1.job_pb2 import CompileFailure, Phase
from compilefarm.v1.manifest_pb2 import Manifest

OnPhase = Callable[[Phase.ValueType], None]
Result = Artifact | CompileFailure

# So often an answer comes although there is nothing new.
_NEWS_SECONDS = 5.0
# Blobs of so many bytes in all come with the news of their artifact, which Ray still sends with its answer then.
_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An artifact whose blobs are read piece by piece, but for small ones.

    Attributes:
        manifest: its description.
        sizes: bytes of each blob that is to be read, by digest.
        small: the other blobs, by digest.
    """

    manifest: Manifest
    sizes: Mapping[str, int]
    small: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has come of a piece of work since it was asked for last.

    Attributes:
        phases: that it has entered.
        outcome: what came of it in the end; None as long as it goes on.
    """

    phases: tuple[Phase.ValueType, ...] = ()
    outcome: Made | CompileFailure | FarmError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A compile that a worker has gone on with for a gateway that was gone.

    Attributes:
        name: of the work.
        key: of the job.
        digest: of the job: requests of one key may differ in the values of their symbols.
        verify: whether its artifact is verified.
    """

    name: str
    key: str
    digest: str
    verify: bool

    @staticmethod
    def of(assignment: Assignment, *, name: str) -> Kept:
        """What is kept of an assignment."""
        digest = digest_of(assignment.job.SerializeToString(deterministic=True))
        return Kept(name=name, key=assignment.key, digest=digest, verify=assignment.verify)


@dataclass(slots=True, kw_only=True)
class _Heard:
    phases: list[Phase.ValueType] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, phase: Phase.ValueType) -> None:
        self.phases.append(phase)
        self.news.set()


class Work:
    """A compile or a verification.

    Attributes:
        name: of this piece of work; no other has it.
        kept: what another gateway needs to know to go on with it; None: nobody can.

    Args:
        name: see above.
        begin: begins it; is given what to call at every change of phase.
        kept: see above.
    """

    def __init__(self, name: str, begin: Callable[[OnPhase], Awaitable[Result]], *, kept: Kept | None = None) -> None:
        self.name = name
        self.kept = kept
        self._heard = _Heard()
        self._task = asyncio.ensure_future(begin(self._heard.note))
        self._task.add_done_callback(lambda _: self._heard.news.set())

    async def news(self, seen: int) -> News:
        """What has come after so many phases; waits a while for something."""
        if len(self._heard.phases) <= seen and not self._task.done():
            self._heard.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._heard.news.wait(), timeout=_NEWS_SECONDS)
        return News(phases=tuple(self._heard.phases[seen:]), outcome=self._outcome())

    async def read(self, digest: str, *, start: int) -> bytes:
        """A piece of a blob of the artifact that it has made."""
        result = self._task.result()
        assert isinstance(result, Artifact), "only artifacts have blobs"
        return await asyncio.to_thread(_piece, result.blobs[digest], start)

    async def end(self) -> None:
        """Ends it, and returns when it has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def _outcome(self) -> Made | CompileFailure | FarmError | None:
        if not self._task.done():
            return None
        if self._task.cancelled():
            return WorkerLost("the worker has given up the job")
        try:
            result = self._task.result()
        except FarmError as error:
            return error
        if isinstance(result, CompileFailure):
            return result
        return _made(result)


def _made(artifact: Artifact) -> Made:
    small: dict[str, bytes] = {}
    left_bytes = _SMALL_BYTES
    for digest, content in sorted(artifact.blobs.items(), key=lambda each: len(each[1])):
        left_bytes -= len(content)
        if left_bytes < 0:
            break
        small[digest] = content[: len(content)]
    sizes = {digest: len(content) for digest, content in artifact.blobs.items() if digest not in small}
    return Made(manifest=artifact.manifest, sizes=sizes, small=small)


def _piece(content: Content, start: int) -> bytes:
    return content[start : start + PIECE_BYTES]
