"""Entries of torch's caches as a pod asks for them: whatever happens is a miss, with one line, and never an error."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_caches import FarmCaches
from compilefarm.client.read_ahead import ReadAhead
from compilefarm.client.settings import ConfigurationError
from compilefarm.client.trust import Trust
from compilefarm.core.cache_entries import describe
from compilefarm.core.errors import CorruptArtifact
from compilefarm.core.signatures import SigningKey, new_signing_key
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from compilefarm.v1.admin_service_pb2 import StatusRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.cache_service_pb2 import FoundEntry, TorchCache

FX_GRAPH, AUTOTUNE = TorchCache.TORCH_CACHE_FX_GRAPH, TorchCache.TORCH_CACHE_AUTOTUNE
LARGE = os.urandom(3_000_000)


def caches_at(address: str, *, trust: Trust | None = None, **settings: float) -> FarmCaches:
    config = ClientConfig(address=address, trust=trust or Trust(), **settings)  # type: ignore[arg-type]
    clock = SystemClock()
    return FarmCaches(config, connection=Connection(config, clock=clock), clock=clock)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    store = asyncio.run(open_caches(str(tmp_path / "farm"), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        yield address


@pytest.fixture
def key_file(tmp_path: Path) -> tuple[str, SigningKey]:
    key = new_signing_key()
    (tmp_path / "key.pem").write_bytes(key.pem())
    return str(tmp_path / "key.pem"), key


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("key", ["plain", "long " * 1000, "not\nplain é"])
def test_what_one_pod_keeps_another_finds(farm: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    caches_at(farm).keep(FX_GRAPH, key, LARGE)
    assert caches_at(farm).find(FX_GRAPH, key) == LARGE
    assert caches_at(farm).find(AUTOTUNE, key) is None
    assert caches_at(farm).find(FX_GRAPH, key + "other") is None
    assert lines(caplog) == []


def questions(farm: str) -> int:
    """How often the farm was asked for an entry."""
    stubs = Connection(ClientConfig(address=farm), clock=SystemClock()).stubs()
    usage = AdminServiceStub(stubs.channel).Status(StatusRequest()).caches
    return sum(requests.hits + requests.misses for requests in usage.requests)


def find_all(caches: FarmCaches, keys: str) -> dict[str, bytes | None]:
    return {key: caches.find(FX_GRAPH, key) for key in keys}


def test_a_second_pod_asks_once_for_what_the_first_has_asked_for_one_by_one(farm: str) -> None:
    contents = {key: key.encode() * 10_000 for key in "abcdefgh"}
    for key, content in contents.items():
        caches_at(farm).keep(FX_GRAPH, key, content)
    for asked in (8, 9):
        assert find_all(caches_at(farm), "abcdefgh") == contents
        assert questions(farm) == asked
    # A pod that writes one does not take its own for what came before.
    writer = caches_at(farm)
    assert writer.find(FX_GRAPH, "a") == contents["a"]
    writer.keep(FX_GRAPH, "b", b"anew")
    assert writer.find(FX_GRAPH, "b") == b"anew"


def test_the_first_reader_asks_once_for_what_the_pod_that_compiled_has_missed_and_written(farm: str) -> None:
    contents = {key: key.encode() * 100_000 for key in "abcdefgh"}
    compiling = caches_at(farm)
    for key, content in contents.items():
        assert compiling.find(FX_GRAPH, key) is None
        compiling.keep(FX_GRAPH, key, content)
    assert find_all(caches_at(farm), "abcdefgh") == contents
    assert questions(farm) == 9


def test_a_forked_process_goes_on_with_what_came_to_its_parent_and_asks_for_the_rest_itself(farm: str) -> None:
    for key in "abcd":
        caches_at(farm).keep(FX_GRAPH, key, bytes(100_000))
    find_all(caches_at(farm), "abcd")
    command = [sys.executable, str(Path(__file__).with_name("forking_reader.py")), farm, "abcd"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines() == [
        "parent: a100000",
        "child: a100000 b100000 c100000 d100000",
        "parent: b100000 c100000 d100000",
    ]


def test_where_entries_that_come_ahead_are_of_no_use_fewer_come(farm: str) -> None:
    writer, reader = caches_at(farm), caches_at(farm)
    for key in "abcdef":
        writer.keep(FX_GRAPH, key, bytes(700_000))
    find_all(reader, "abcdef")
    wandering = caches_at(farm)
    assert all(find_all(wandering, "acebdf").values())
    # Of 2 MiB two come each time, of 512 KiB none: only the first answers hold what nobody takes.
    assert wandering._reads._state().ahead_bytes < 700_000


def test_what_comes_ahead_is_trusted_and_checked_as_what_was_asked_for(
    farm: str, key_file: tuple[str, SigningKey], caplog: pytest.LogCaptureFixture
) -> None:
    path, key = key_file
    signer, stranger = caches_at(farm, trust=Trust(cache_signing_key=path)), caches_at(farm)
    signer.keep(FX_GRAPH, "a", b"signed")
    stranger.keep(FX_GRAPH, "b", b"unsigned")
    find_all(caches_at(farm), "ab")
    reader = caches_at(farm, trust=Trust(trusted_cache_keys=(key.public,)))
    assert find_all(reader, "ab") == {"a": b"signed", "b": None}
    assert [line for line in lines(caplog) if "untrusted_artifact" in line] != []


class ScriptedCalls(CacheCalls):
    """Calls to a farm whose answers hold these entries.

    Attributes:
        answers: for each question, or what makes one.
        asked: the keys that were asked for.
    """

    answers: list[list[FoundEntry] | Callable[[], list[FoundEntry]]]

    def find(self, cache: TorchCache.ValueType, key: str, *, ahead_bytes: int) -> Sequence[FoundEntry]:
        self.asked = [*getattr(self, "asked", []), key]
        answer = self.answers.pop(0)
        return answer if isinstance(answer, list) else answer()


def scripted(*answers: list[FoundEntry] | Callable[[], list[FoundEntry]]) -> tuple[ScriptedCalls, ReadAhead]:
    config, clock = ClientConfig(address="127.0.0.1:1"), SystemClock()
    calls = ScriptedCalls(config, connection=Connection(config, clock=clock), clock=clock)
    calls.answers = list(answers)
    return calls, ReadAhead(calls, clock=clock)


def found(key: str, content: bytes = b"content") -> FoundEntry:
    return FoundEntry(entry=describe(b"content", cache=FX_GRAPH, key=key), content=content)


@pytest.mark.parametrize(
    ("key", "content", "message"), [("other", b"content", "instead of"), ("key", b"damaged", "other bytes")]
)
def test_what_is_found_is_what_was_asked_for_as_its_digest_says(key: str, content: bytes, message: str) -> None:
    _, reads = scripted([found(key, content)])
    with pytest.raises(CorruptArtifact, match=message):
        reads.read(FX_GRAPH, "key")


def test_what_comes_ahead_damaged_is_an_error_for_that_entry_alone() -> None:
    calls, reads = scripted([found("a"), found("b", b"damaged"), found("c")])
    reads.read(FX_GRAPH, "a")
    with pytest.raises(CorruptArtifact, match="other bytes"):
        reads.read(FX_GRAPH, "b")
    assert reads.read(FX_GRAPH, "c") == b"content"
    assert calls.asked == ["a"]


def test_a_thread_does_not_wait_for_one_that_waits_for_the_farm() -> None:
    waiting, answered = threading.Event(), threading.Event()

    def slow() -> list[FoundEntry]:
        waiting.set()
        assert answered.wait(10)
        return [found("a")]

    calls, reads = scripted(slow, [found("b"), found("c")])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(reads.read, FX_GRAPH, "a")
        assert waiting.wait(10)
        assert reads.read(FX_GRAPH, "b") == b"content"
        assert reads.read(FX_GRAPH, "c") == b"content"
        answered.set()
        assert first.result() == b"content"
    assert calls.asked == ["a", "b"]


def test_what_a_pod_writes_itself_it_does_not_take_from_what_came() -> None:
    calls, reads = scripted([found("a"), found("b")], [found("b")])
    reads.read(FX_GRAPH, "a")
    reads.forget(FX_GRAPH, "b")
    reads.read(FX_GRAPH, "b")
    assert calls.asked == ["a", "b"]


def test_a_farm_that_is_down_costs_one_attempt_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        # It is bound and does not listen, so nobody answers.
        nobody.bind(("127.0.0.1", 0))
        attempts = 0

        def count(config: ClientConfig) -> grpc.Channel:
            nonlocal attempts
            attempts += 1
            return grpc.insecure_channel(config.address)

        config = ClientConfig(address=f"127.0.0.1:{nobody.getsockname()[1]}", connect_timeout_seconds=1)
        clock = SystemClock()
        caches = FarmCaches(config, connection=Connection(config, clock=clock, open_channel=count), clock=clock)
        for number in range(20):
            assert caches.find(FX_GRAPH, f"{number}") is None
            caches.keep(FX_GRAPH, f"{number}", b"content")
    assert attempts == 1
    (line,) = lines(caplog)
    assert "torch goes on with local ones [unreachable]" in line


def test_a_farm_that_says_nothing_costs_the_budget_of_one_call(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        caches = caches_at(f"127.0.0.1:{silent.getsockname()[1]}", cache_timeout_seconds=0.3)
        clock = SystemClock()
        start = clock.now()
        for number in range(50):
            assert caches.find(FX_GRAPH, f"{number}") is None
        assert clock.now() - start < 5
    assert len(lines(caplog)) == 1


def test_a_farm_that_keeps_no_caches_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with serving_in_thread() as address:
        caches = caches_at(address)
        for _ in range(3):
            caches.keep(FX_GRAPH, "key", b"content")
            assert caches.find(FX_GRAPH, "key") is None
    (line,) = lines(caplog)
    assert "serve --cache-size-limit" in line


def test_an_entry_for_which_there_is_no_room_is_not_kept_and_the_reason_said(
    farm: str, caplog: pytest.LogCaptureFixture
) -> None:
    caches = caches_at(farm)
    caches.keep(FX_GRAPH, "key", bytes(60_000_000))
    assert caches.find(FX_GRAPH, "key") is None
    (line,) = lines(caplog)
    assert "store_full" in line


def test_entries_that_no_trusted_key_has_signed_are_misses(
    farm: str, key_file: tuple[str, SigningKey], caplog: pytest.LogCaptureFixture
) -> None:
    path, key = key_file
    reader = caches_at(farm, trust=Trust(trusted_cache_keys=(key.public,)))
    caches_at(farm).keep(FX_GRAPH, "unsigned", b"content")
    caches_at(farm, trust=Trust(cache_signing_key=path)).keep(FX_GRAPH, "signed", b"content")
    assert reader.find(FX_GRAPH, "signed") == b"content"
    assert lines(caplog) == []
    assert reader.find(FX_GRAPH, "unsigned") is None
    other = caches_at(farm, trust=Trust(trusted_keys=(new_signing_key().public,)))
    assert other.find(FX_GRAPH, "signed") is None
    assert all("untrusted_artifact" in line for line in lines(caplog))
    assert caches_at(farm).find(FX_GRAPH, "unsigned") == b"content"


def test_a_pod_that_wants_signatures_and_has_no_key_leaves_signed_entries_in_place(
    farm: str, key_file: tuple[str, SigningKey], caplog: pytest.LogCaptureFixture
) -> None:
    path, key = key_file
    caches_at(farm, trust=Trust(cache_signing_key=path)).keep(FX_GRAPH, "key", b"signed")
    reader = caches_at(farm, trust=Trust(trusted_cache_keys=(key.public,)))
    assert lines(caplog) == []
    for name in ("key", "another"):
        reader.keep(FX_GRAPH, name, b"unsigned")
    assert reader.find(FX_GRAPH, "key") == b"signed"
    # Nothing that such pods write would ever be found, so it says so.
    (line,) = lines(caplog)
    assert "not written" in line
    assert "COMPILEFARM_CACHE_SIGNING_KEY" in line


def test_a_signature_is_good_for_one_name_alone(key_file: tuple[str, SigningKey]) -> None:
    from compilefarm.core.errors import UntrustedArtifact
    from compilefarm.core.signatures import check_signature_of_entry

    _, key = key_file
    entry = describe(b"content", cache=FX_GRAPH, key="key")
    entry.signature.CopyFrom(key.signature_of_entry(entry))
    # What the service adds is not covered.
    entry.namespace, entry.writer, entry.written_seconds = "prod", "search", 1.0
    check_signature_of_entry(entry, trusted=[key.public])
    for field, value in (("key", "other"), ("cache", AUTOTUNE), ("digest", "ab" * 32), ("size_bytes", 8)):
        changed = type(entry)()
        changed.CopyFrom(entry)
        setattr(changed, field, value)
        with pytest.raises(UntrustedArtifact, match="does not fit"):
            check_signature_of_entry(changed, trusted=[key.public])


@pytest.mark.parametrize("content", [None, b"no key"])
def test_a_signing_key_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"cannot be signed with .*key\.pem"):
        caches_at("127.0.0.1:1", trust=Trust(cache_signing_key=str(tmp_path / "key.pem")))


def test_a_caller_with_a_role_for_caches_alone_reads_them(tmp_path: Path) -> None:
    from compilefarm.core.digests import digest_of
    from compilefarm.service.config import GatewayConfig

    listed = tmp_path / "callers.toml"
    listed.write_text(
        "".join(
            f'[[callers]]\nname = "{role}"\nrole = "{role}"\ntokens = ["sha256:{digest_of(role.encode())}"]\n'
            for role in ("cache-read", "cache-write")
        )
    )
    store = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(listed))
    with serving_in_thread(caches=store, config=config) as address:
        caches_at(address, trust=Trust(token="cache-write")).keep(FX_GRAPH, "key", b"content")
        reader = caches_at(address, trust=Trust(token="cache-read"))
        assert reader.find(FX_GRAPH, "key") == b"content"
        reader.keep(FX_GRAPH, "key", b"other")
        assert reader.find(FX_GRAPH, "key") == b"content"


def test_a_key_that_utf8_does_not_have_is_one_too(farm: str, caplog: pytest.LogCaptureFixture) -> None:
    caches = caches_at(farm)
    caches.keep(TorchCache.TORCH_CACHE_TRITON, "a kernel/\ud800", b"content")
    assert caches.find(TorchCache.TORCH_CACHE_TRITON, "a kernel/\ud800") == b"content"
    assert caches.find(TorchCache.TORCH_CACHE_TRITON, "a kernel/\ud801") is None
    assert lines(caplog) == []
