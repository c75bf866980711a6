"""Answers of one message that nobody takes: they count for who asked, and do not stay."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.metadata import BEARER, TOKEN_KEY
from compilefarm.service.connection_watch import LOOK_SECONDS
from compilefarm.service.testing import ManualClock, Refused, calling, refusals, serving
from compilefarm.v1.blob_service_pb2 import FindMissingRequest
from tests.hostile.callers import LOOPBACK, asking

# The answer repeats them: more than a client takes before somebody reads it, unless it measures the line.
MANY = FindMissingRequest(digests=[digest_of(b"%d" % number) for number in range(1000)])
ANSWER_BYTES = MANY.ByteSize()
NO_MORE_THAN_IT_MUST = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]


def names(asks: bool) -> dict[str, str]:
    return {"one": "read", "two": "read"} if asks else {"": "admin"}


@asynccontextmanager
async def taking_nothing(address: str, *, token: str = "") -> AsyncIterator[Callable[[], Any]]:
    """Yields what asks, and takes nothing of the answer."""
    metadata = [(TOKEN_KEY, f"{BEARER}{token}")] if token else []
    async with grpc.aio.insecure_channel(address, options=NO_MORE_THAN_IT_MUST) as channel:
        method = channel.unary_stream(
            "/compilefarm.v1.BlobService/FindMissing", request_serializer=FindMissingRequest.SerializeToString
        )
        yield lambda: method(MANY, metadata=metadata)


@pytest.mark.parametrize("asks", [True, False], ids=["auth", "open"])
async def test_a_connection_that_does_not_take_its_answer_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, asks: bool
) -> None:
    # gRPC would keep the answer until then: 5,000 of 122 KB took 3.6 GB, and had no end.
    clock, config = ManualClock(), asking(tmp_path, names(asks)) if asks else LOOPBACK
    async with (
        serving(config=config, clock=clock) as gateway,
        taking_nothing(gateway.address, token="one" if asks else "") as ask,
        calling(gateway.address, token="one" if asks else "") as calls,
    ):
        slow = ask()
        answers = gateway._call_limits.answers
        while answers.used_bytes == 0:
            await calls.status()
        assert answers.used_bytes == ANSWER_BYTES
        while not slow.done():
            # Whoever looks may have begun before the answer was given up: the next look ends it.
            clock.advance(LOOK_SECONDS)
            await calls.status()
        with pytest.raises(Refused) as refused, refusals():
            _ = [message async for message in slow]
        assert answers.used_bytes == 0
        await calls.status()
    assert refused.value.status == "UNAVAILABLE"
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["the connection of 127.0.0.1 is ended: it does not take what it asked for"]


async def test_answers_on_their_way_are_bounded_for_each_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("compilefarm.service.call_limits.ANSWERED_BYTES_OF_ACCOUNT", 3 * ANSWER_BYTES)
    async with (
        serving(config=asking(tmp_path, names(asks=True))) as gateway,
        taking_nothing(gateway.address, token="one") as ask,
        calling(gateway.address, token="one") as calls,
        calling(gateway.address, token="two") as others,
    ):
        slow = [ask() for _ in range(3)]
        while gateway._call_limits.answers.used_bytes < 3 * ANSWER_BYTES:
            await others.status()
        with pytest.raises(Refused, match="bytes on their way") as refused:
            await calls.find_missing(MANY.digests)
        assert refused.value.reason == "busy"
        assert len(await others.find_missing(MANY.digests)) == 1000
        for each in slow:
            each.cancel()
        # Those that went away leave room, and nothing in the log.
        while gateway._call_limits.answers.used_bytes:
            await others.status()
        assert len(await calls.find_missing(MANY.digests)) == 1000
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
