"""Results on their way from a worker to the gateway: phases as they come, then blobs in pieces, the manifest last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from compilefarm.core.contents import Content
from compilefarm.core.errors import FarmError
from compilefarm.core.pool import Artifact
from compilefarm.v1.child_pb2 import ChildBlob
from compilefarm.v1.job_pb2 import CompileFailure, Phase
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.worker.pieces import pieces_of
from compilefarm.worker.spooling import SpoolingAssembly

OnPhase = Callable[[Phase.ValueType], None]
Result = Artifact | CompileFailure
# A phase is a number.
Message = int | ChildBlob | Manifest | CompileFailure | FarmError


async def messages_of(work: Callable[[OnPhase], Awaitable[Result]]) -> AsyncIterator[Message]:
    """What a worker says of a piece of work. Ending the iteration cancels the work, and waits for its end."""
    phases: asyncio.Queue[Phase.ValueType | None] = asyncio.Queue()
    task = asyncio.ensure_future(work(phases.put_nowait))
    task.add_done_callback(lambda _: phases.put_nowait(None))
    try:
        while (phase := await phases.get()) is not None:
            yield phase
        try:
            result = task.result()
        except FarmError as error:
            yield error
            return
        for message in _parts_of(result):
            yield message
    finally:
        task.cancel()
        await asyncio.wait({task})


async def result_of(messages: AsyncIterator[Message], *, on_phase: OnPhase) -> Result:
    """Puts together what a worker says.

    Raises:
        FarmError: the one that the worker raised.
    """
    blobs: dict[str, Content] = {}
    assembly = SpoolingAssembly()
    async for message in messages:
        match message:
            case ChildBlob():
                if (blob := await assembly.add(message)) is not None:
                    # As the supervisor of the worker has computed it; the store computes it once more.
                    blobs[message.digest] = blob[1]
            case Manifest():
                return Artifact(manifest=message, blobs=blobs)
            case CompileFailure():
                return message
            case FarmError():
                raise message
            case _:
                on_phase(Phase.ValueType(message))
    raise AssertionError("a worker ends with a result")


def _parts_of(result: Result) -> Iterator[Message]:
    if isinstance(result, CompileFailure):
        yield result
        return
    for digest, content in result.blobs.items():
        yield from pieces_of(digest, content)
    yield result.manifest
