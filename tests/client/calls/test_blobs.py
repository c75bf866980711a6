"""Blobs over a real connection: resumed, checked, sent once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compilefarm.client.blobs import fetch, send_missing
from compilefarm.client.clock import Budget
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.testing import FakeClock, FarmServicer, manifest_of, serving
from compilefarm.core.artifacts import blobs_of
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, Draining, FarmError, NotStored, StoreUnavailable, Unreachable
from compilefarm.v1.blob_service_pb2 import FindMissingRequest, FindMissingResponse


class Broken(FarmError):
    """What a stream looks like to a client when the connection breaks."""

    status = "UNAVAILABLE"
    reason = "none of the farm's"


@pytest.fixture
def servicer() -> FarmServicer:
    return FarmServicer()


@pytest.fixture
def connection(servicer: FarmServicer) -> Iterator[Connection]:
    with serving(servicer) as address:
        connection = Connection(ClientConfig(address=address), clock=FakeClock())
        yield connection
        connection.close()


@pytest.fixture
def budget() -> Budget:
    return Budget(60, clock=FakeClock())


def store(servicer: FarmServicer, *contents: bytes) -> None:
    servicer.blobs.update({digest_of(content): content for content in contents})


def test_many_blobs_of_all_sizes(servicer: FarmServicer, connection: Connection, budget: Budget) -> None:
    contents = [b"", *(bytes([number]) * number**4 for number in range(1, 41))]
    store(servicer, *contents)
    found = fetch(blobs_of(manifest_of(*contents)), connection=connection, budget=budget)
    assert found == {digest_of(content): content for content in contents}


def test_a_blob_that_an_artifact_names_twice_is_fetched_once(
    servicer: FarmServicer, connection: Connection, budget: Budget
) -> None:
    reads: list[int] = []

    def read(content: bytes, offset_bytes: int) -> Iterator[bytes]:
        reads.append(offset_bytes)
        yield content

    servicer.on_read = read
    store(servicer, b"same")
    found = fetch(blobs_of(manifest_of(b"same", b"same")), connection=connection, budget=budget)
    assert list(found.values()) == [b"same"]
    assert reads == [0]


def test_a_broken_stream_goes_on_where_it_broke(servicer: FarmServicer, connection: Connection, budget: Budget) -> None:
    content = bytes(range(256)) * 16
    offsets: list[int] = []

    def read(content: bytes, offset_bytes: int) -> Iterator[bytes]:
        offsets.append(offset_bytes)
        yield content[offset_bytes : offset_bytes + 1000]
        if len(offsets) < 3:
            raise Broken("broken")
        yield content[offset_bytes + 1000 :]

    servicer.on_read = read
    store(servicer, content)
    found = fetch(blobs_of(manifest_of(content)), connection=connection, budget=budget)
    assert found == {digest_of(content): content}
    assert offsets == [0, 1000, 2000]


def test_a_stream_that_breaks_again_and_again_is_left(
    servicer: FarmServicer, connection: Connection, budget: Budget
) -> None:
    starts: list[int] = []

    def read(content: bytes, offset_bytes: int) -> Iterator[bytes]:
        starts.append(offset_bytes)
        yield b""
        raise Broken("broken")

    servicer.on_read = read
    store(servicer, b"content")
    with pytest.raises(Unreachable):
        fetch(blobs_of(manifest_of(b"content")), connection=connection, budget=budget)
    assert starts == [0, 0, 0]


@pytest.mark.parametrize("wrong", [b"conTent", b"conten", b""])
def test_other_bytes_than_the_digest_says_are_refused(
    wrong: bytes, servicer: FarmServicer, connection: Connection, budget: Budget
) -> None:
    servicer.blobs[digest_of(b"content")] = wrong
    with pytest.raises(CorruptArtifact, match=digest_of(b"content")):
        fetch(blobs_of(manifest_of(b"content")), connection=connection, budget=budget)


def test_an_endless_blob_is_cut_off_at_its_announced_size(
    servicer: FarmServicer, connection: Connection, budget: Budget
) -> None:
    sent: list[int] = []

    def read(content: bytes, offset_bytes: int) -> Iterator[bytes]:
        for _ in range(10_000):
            sent.append(1)
            yield b"x" * 100_000

    servicer.on_read = read
    store(servicer, b"content")
    with pytest.raises(CorruptArtifact, match="more than the 7 bytes"):
        fetch(blobs_of(manifest_of(b"content")), connection=connection, budget=budget)
    assert len(sent) < 10_000


def test_a_blob_that_is_gone(connection: Connection, budget: Budget) -> None:
    with pytest.raises(NotStored):
        fetch(blobs_of(manifest_of(b"gone")), connection=connection, budget=budget)


@pytest.mark.parametrize("refusal", [Draining("bye"), StoreUnavailable("disk full")])
def test_a_refusal_in_the_middle_is_told_as_it_is(
    refusal: Draining | StoreUnavailable, servicer: FarmServicer, connection: Connection, budget: Budget
) -> None:
    def read(content: bytes, offset_bytes: int) -> Iterator[bytes]:
        yield content[:1]
        raise refusal

    servicer.on_read = read
    store(servicer, b"content")
    with pytest.raises(type(refusal), match=str(refusal)):
        fetch(blobs_of(manifest_of(b"content")), connection=connection, budget=budget)


def test_only_what_is_missing_is_sent(servicer: FarmServicer, connection: Connection, budget: Budget) -> None:
    there, missing, empty = b"there", b"m" * 1_000_000, b""
    store(servicer, there)
    blobs = {digest_of(content): content for content in (there, missing, empty)}
    assert send_missing(blobs, connection=connection, budget=budget) == len(missing)
    assert servicer.blobs == blobs
    assert send_missing(blobs, connection=connection, budget=budget) == 0


def test_more_blobs_than_fit_into_one_question(servicer: FarmServicer, connection: Connection, budget: Budget) -> None:
    contents = [str(number).encode() for number in range(1001)]
    store(servicer, *contents[:-1])
    blobs = {digest_of(content): content for content in contents}
    assert send_missing(blobs, connection=connection, budget=budget) == len(contents[-1])
    assert servicer.questions == 1 + 2


class Lying(FarmServicer):
    """Says that it misses what it was not asked about, and everything twice."""

    def FindMissing(self, request: FindMissingRequest, context: object) -> FindMissingResponse:
        return FindMissingResponse(digests=[digest_of(b"another"), *(2 * list(request.digests))])


def test_what_a_farm_says_it_misses_and_was_not_asked_about_is_not_sent(budget: Budget) -> None:
    servicer, writes = Lying(), list[str]()
    servicer.before_answer = writes.append
    with serving(servicer) as address:
        connection = Connection(ClientConfig(address=address), clock=FakeClock())
        assert send_missing({digest_of(b"held"): b"held"}, connection=connection, budget=budget) == len(b"held")
        connection.close()
    assert (servicer.blobs, writes) == ({digest_of(b"held"): b"held"}, ["Write"])
