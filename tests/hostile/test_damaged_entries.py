"""Who may write entries of torch's caches says of them what makes no sense: nobody else's change, and nothing fails."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import cast

import grpc
import pytest

from compilefarm.core.cache_entries import describe
from compilefarm.core.digests import digest_of
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from compilefarm.v1.bundle_pb2 import BundlePart, BundlePush
from compilefarm.v1.cache_service_pb2 import (
    CacheEntry,
    FindEntryRequest,
    FindMissingEntriesRequest,
    GetRequest,
    GetResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    PutRequest,
    RemoveEntriesRequest,
    TorchCache,
)

from .callers import asking

_KEY, _CONTENT = "pt2:autotune::kernel:c1", json.dumps({"best": {"BLOCK": 8, "num_warps": 4}}).encode()
_PART = b"a part of a bundle"
_PUSH = BundlePush(parts=[BundlePart(kind="inductor", key="key", digest=digest_of(_PART), size_bytes=len(_PART))])
_ENTRIES: Sequence[tuple[TorchCache.ValueType, str, bytes]] = (
    (TorchCache.TORCH_CACHE_AUTOTUNE, _KEY, _CONTENT),
    (TorchCache.TORCH_CACHE_MEGA_PART, digest_of(_PART), _PART),
    (TorchCache.TORCH_CACHE_MEGA_PUSH, f"job {digest_of(_PUSH.SerializeToString())}", _PUSH.SerializeToString()),
)
_OTHER_WORDS = ("", " ", ".", "../prod", "/etc/passwd", "prod", "\x1b[2J", "\x00", "é", "a" * 1001, "0" * 64, _KEY)
_OTHER_NUMBERS = (0, -1, 1, 7, 99, 2**31 - 1, 2**62, -(2**63))
# What a caller is told of what makes no sense, or is not there, or is not its own.
_ANSWERS = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}


class Caller:
    """Sends bytes as they are, to any method."""

    def __init__(self, channel: grpc.Channel, *, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def send(self, method: str, *messages: bytes) -> tuple[str, list[bytes]]:
        """The status of a call, and the answers."""
        call = self._channel.stream_stream(f"/compilefarm.v1.CacheService/{method}")
        answers = call(iter(messages), metadata=self._metadata, timeout=60)
        try:
            return "OK", list(answers)
        except grpc.RpcError as error:
            # Every error of a call is one itself.
            return cast("grpc.Call", error).code().name, []

    def read(self, cache: TorchCache.ValueType, key: str) -> tuple[CacheEntry, bytes]:
        """An entry."""
        status, (first, *rest) = self.send("Get", GetRequest(cache=cache, key=key).SerializeToString())
        assert status == "OK"
        return GetResponse.FromString(first).entry, b"".join(GetResponse.FromString(each).chunk for each in rest)

    def entries(self, cache: TorchCache.ValueType) -> list[CacheEntry]:
        """Those that it may read."""
        status, answers = self.send("ListEntries", ListEntriesRequest(cache=cache).SerializeToString())
        assert status == "OK"
        return [entry for each in answers for entry in ListEntriesResponse.FromString(each).entries]


def pieces_of(cache: TorchCache.ValueType, key: str, content: bytes) -> list[bytes]:
    """Messages by which an entry is written."""
    entry = describe(content, cache=cache, key=key)
    return [PutRequest(entry=entry).SerializeToString(), PutRequest(chunk=content).SerializeToString()]


def hostile_call(random: Random) -> tuple[str, list[bytes]]:
    """A method and what it is sent."""
    cache, key, content = random.choice(_ENTRIES)
    if random.random() < 0.2:
        cache, key = random.choice((cache, *_OTHER_NUMBERS[:5])), random.choice(_OTHER_WORDS)
    # An unknown number of an enumeration is a number.
    cache = TorchCache.ValueType(cache)
    method, message = random.choice(
        (
            ("Get", GetRequest(cache=cache, key=key)),
            ("FindEntry", FindEntryRequest(cache=cache, key=key, ahead_bytes=random.choice(_OTHER_NUMBERS))),
            ("FindMissingEntries", FindMissingEntriesRequest(cache=cache, keys=[key] * random.choice((1, 2, 1001)))),
            ("ListEntries", ListEntriesRequest(cache=cache, key_prefix=key[: random.randrange(9)])),
            ("RemoveEntries", RemoveEntriesRequest(cache=cache, keys=[key])),
            *[("Put", None)] * 5,
        )
    )
    if message is not None:
        return method, [_damaged(message.SerializeToString(), random)]
    return method, _hostile_pieces(cache, key, content, random)


def _hostile_pieces(cache: TorchCache.ValueType, key: str, content: bytes, random: Random) -> list[bytes]:
    content = _damaged(content, random)
    if cache == TorchCache.TORCH_CACHE_MEGA_PUSH and random.random() < 0.8:
        key = f"job {digest_of(content)}"
    entry = describe(content, cache=TorchCache.TORCH_CACHE_AUTOTUNE, key=_KEY)
    entry.cache, entry.key = cache, key if key.isascii() else _KEY
    for _ in range(random.choice((0, 1, 1, 2))):
        name = random.choice(("cache", "key", "digest", "size_bytes", "namespace", "writer", "written_seconds"))
        is_word = isinstance(getattr(entry, name), str)
        value = random.choice(_OTHER_WORDS if is_word else _OTHER_NUMBERS[:6])
        setattr(entry, name, value)
    messages = (PutRequest(entry=entry), PutRequest(chunk=content))
    pieces = [_damaged(message.SerializeToString(), random) for message in messages]
    return random.choice((pieces, pieces, pieces, pieces[::-1], pieces * 2, pieces[:1], pieces[1:], []))


def _damaged(content: bytes, random: Random) -> bytes:
    """Mostly as it is, otherwise with bytes that are missing, doubled or others."""
    if random.random() < 0.8:
        return content
    start = random.randrange(len(content) + 1)
    junk = random.choice((b"", random.randbytes(random.randrange(8)), content[start:] * 2))
    return content[:start] + junk + content[start + random.randrange(8) :]


def attack(address: str, *, calls: int, seed: int) -> Counter[tuple[str, str]]:
    """What came of calls, by method and status. Whoever is called `prod` has written its entries before, and has them
    afterwards; what `dev` has written is its own.
    """
    outcomes: Counter[tuple[str, str]] = Counter()
    with grpc.insecure_channel(address) as channel:
        prod, dev = Caller(channel, token="prod"), Caller(channel, token="dev")
        for entry in _ENTRIES:
            assert prod.send("Put", *pieces_of(*entry))[0] == "OK"
        for number in range(calls):
            method, messages = hostile_call(Random(f"{seed} {number}"))
            status, _ = dev.send(method, *messages)
            outcomes[method, status] += 1
            assert status in _ANSWERS, f"call {number} of seed {seed}: {method} {messages!r}"
        for cache, key, content in _ENTRIES:
            entry, read = prod.read(cache, key)
            assert (entry.namespace, read) == ("prod", content)
        for cache in TorchCache.values()[1:]:
            assert {entry.namespace for entry in prod.entries(cache)} <= {"prod"}
            assert {entry.namespace for entry in dev.entries(cache)} <= {"prod", "dev"}
    return outcomes


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    caches = asyncio.run(open_caches(str(tmp_path / "farm"), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    config = asking(tmp_path, {"prod": "cache-write", "dev": "cache-write"}, config=GatewayConfig(listen="127.0.0.1:0"))
    with serving_in_thread(caches=caches, config=config) as address:
        yield address


def test_whatever_is_said_of_entries(farm: str) -> None:
    outcomes = attack(farm, calls=250, seed=0)
    # Some of it makes sense.
    assert outcomes["Put", "OK"] >= 10
    assert outcomes["Put", "INVALID_ARGUMENT"] >= 50
