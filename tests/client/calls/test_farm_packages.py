"""Packages as a pod asks for them: those that a trusted key has signed, and for all others a miss with the reason."""

from __future__ import annotations

import asyncio
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.settings import ConfigurationError
from compilefarm.client.trust import Trust
from compilefarm.core.signatures import SigningKey, new_signing_key
from compilefarm.packages.packing import Found, ProgramRecord, name_of, pack
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from compilefarm.v1 import package_pb2 as wire
from compilefarm.v1.package_service_pb2 import FindRequest, PublishRequest
from compilefarm.v1.package_service_pb2_grpc import PackageServiceStub
from tests.packages.variants import found

KEY, OTHER_KEY = f"{'a' * 16}-{'b' * 64}", f"{'a' * 16}-{'c' * 64}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("farm")
    store = asyncio.run(open_caches(str(folder), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        yield address


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """What no other test has in the key of its packages."""
    return request.node.nodeid


@pytest.fixture
def key(place: str) -> str:
    return found(place=place).key


@pytest.fixture
def signer() -> SigningKey:
    return new_signing_key()


@pytest.fixture
def key_file(tmp_path: Path, signer: SigningKey) -> str:
    (tmp_path / "key.pem").write_bytes(signer.pem())
    return str(tmp_path / "key.pem")


def packages_at(address: str, *, trusted: SigningKey | None = None, key_file: str = "") -> FarmPackages:
    keys = () if trusted is None else (trusted.public,)
    trust = Trust(trusted_package_keys=keys, package_signing_key=key_file)
    config, clock = ClientConfig(address=address, trust=trust, connect_timeout_seconds=1), SystemClock()
    return FarmPackages(config, connection=Connection(config, clock=clock), clock=clock)


def send(address: str, package: wire.SignedPackage) -> None:
    """Publishes as somebody does who writes a client of his own."""
    with grpc.insecure_channel(address) as channel:
        PackageServiceStub(channel).Publish(PublishRequest(package=package))


def signed(content: bytes, *, by: SigningKey, key: str) -> wire.SignedPackage:
    package = wire.SignedPackage(key=key, name=name_of(found(), key_id=by.public.key_id), content=content)
    package.signature.CopyFrom(by.signature_of_package(package))
    return package


def test_what_one_pod_publishes_another_finds(address: str, place: str, signer: SigningKey, key_file: str) -> None:
    publisher, reader = packages_at(address, key_file=key_file), packages_at(address, trusted=signer)
    given = [found(place=place), found(expected="other", place=place), found(expected="another", place=place)]
    key = given[0].key
    assert not reader.find(key).found
    assert [publisher.publish(each) for each in given] == [""] * 3
    answer = reader.find(key)
    assert sorted(answer.found, key=repr) == sorted(given, key=repr)
    assert not answer.reasons
    assert publisher.find(key) == answer
    assert not reader.find(OTHER_KEY).found


def test_publishers_at_once_lose_nothing(address: str, place: str, signer: SigningKey, key_file: str) -> None:
    given = [found(expected=f"{number}", place=place) for number in range(24)]
    publishers = [packages_at(address, key_file=key_file) for _ in range(6)]
    start = threading.Barrier(len(publishers))

    def publish(number: int) -> list[str]:
        start.wait()
        # Each says some that others say, too.
        return [publishers[number].publish(each) for each in given[number * 4 : number * 4 + 8]]

    with ThreadPoolExecutor(len(publishers)) as pool:
        assert {reason for reasons in pool.map(publish, range(len(publishers))) for reason in reasons} == {""}
    assert sorted(packages_at(address, trusted=signer).find(given[0].key).found, key=repr) == sorted(given, key=repr)


def changed(change: Callable[[wire.Package], object]) -> bytes:
    package = wire.Package.FromString(zlib.decompress(pack(found())))
    change(package)
    return zlib.compress(package.SerializeToString())


CONTENTS = {
    "truncated": (pack(found())[:-20], "no end"),
    "none": (b"no package", "cannot be read"),
    "newer": (changed(lambda package: setattr(package, "format", 9)), "format 9"),
    "of another interpreter": (changed(lambda package: setattr(package, "interpreter", "cpython-39")), "cpython-39"),
    "without its programs": (changed(lambda package: package.ClearField("programs")), "other programs"),
    "with code that contradicts itself": (
        changed(lambda package: package.variant.code.ClearField("consts")), "contradicts itself"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", CONTENTS)
def test_what_is_signed_and_no_package_is_a_miss_with_the_reason(
    how: str, address: str, place: str, signer: SigningKey, key_file: str
) -> None:
    content, reason = CONTENTS[how]
    whole = found(expected="whole", place=place)
    send(address, signed(content, by=signer, key=whole.key))
    packages_at(address, key_file=key_file).publish(whole)
    answer = packages_at(address, trusted=signer).find(whole.key)
    assert answer.found == [whole]
    (said,) = answer.reasons
    assert reason in said


@pytest.mark.parametrize(("fields", "reason"), [({"key": OTHER_KEY}, "key"), ({"name": "1" * 64}, "name")])
def test_what_lies_under_the_key_or_name_of_another_is_refused(
    fields: dict[str, str], reason: str, address: str, place: str, signer: SigningKey
) -> None:
    own = signed(pack(found(place=place)), by=signer, key=found(place=place).key)
    moved = tampered(own, **fields)
    moved.signature.CopyFrom(signer.signature_of_package(moved))
    send(address, moved)
    answer = packages_at(address, trusted=signer).find(moved.key)
    assert not answer.found
    assert f"it lies under {reason} {getattr(moved, reason)[:16]}" in answer.reasons[0]


def tampered(package: wire.SignedPackage, **fields: object) -> wire.SignedPackage:
    for name, value in fields.items():
        setattr(package, name, value)
    return package


FORGERIES: dict[str, tuple[Callable[[SigningKey, str], wire.SignedPackage], str]] = {
    "unsigned": (
        lambda signer, key: wire.SignedPackage(key=key, name="0" * 64, content=pack(found())), "is not signed"
    ),
    "signed by a foreign key": (
        lambda _, key: signed(pack(found()), by=new_signing_key(), key=key), "is signed by key"
    ),
    "edited": (
        lambda signer, key: tampered(signed(pack(found()), by=signer, key=key), content=pack(found(expected="0"))),
        "does not fit",
    ),
    "renamed": (lambda signer, key: tampered(signed(pack(found()), by=signer, key=key), name="1" * 64), "does not fit"),
    "of another key": (
        lambda signer, key: tampered(signed(pack(found()), by=signer, key=OTHER_KEY), key=key), "does not fit"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_what_nobody_trusted_has_signed_is_not_read(
    how: str, address: str, key: str, signer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge, reason = FORGERIES[how]
    # A farm that somebody has taken over keeps what a farm refuses.
    monkeypatch.setattr("compilefarm.service.package_service.check_package", lambda package: package)
    send(address, forge(signer, key))
    monkeypatch.setattr("compilefarm.packages.packing.read", lambda _: pytest.fail("it was read"))
    answer = packages_at(address, trusted=signer).find(key)
    assert not answer.found
    (said,) = answer.reasons
    assert reason in said


def test_a_key_for_artifacts_or_entries_counts_for_no_package(address: str, key: str, signer: SigningKey) -> None:
    send(address, signed(pack(found()), by=signer, key=key))
    trust = Trust(
        trusted_keys=(signer.public,),
        trusted_cache_keys=(signer.public,),
        trusted_package_keys=(new_signing_key().public,),
    )
    config, clock = ClientConfig(address=address, trust=trust), SystemClock()
    answer = FarmPackages(config, connection=Connection(config, clock=clock), clock=clock).find(key)
    assert not answer.found
    assert "is signed by key" in answer.reasons[0]


def test_without_trusted_keys_the_farm_is_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        answer = packages_at(f"127.0.0.1:{server.getsockname()[1]}").find(KEY)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert answer.reasons == ["no key is trusted to sign packages (COMPILEFARM_TRUSTED_PACKAGE_KEYS)"]


def test_a_farm_that_answers_with_another_package_is_not_believed(
    address: str, key: str, place: str, signer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(address, signed(pack(found(place=place)), by=signer, key=key))
    packages = packages_at(address, trusted=signer)
    monkeypatch.setattr("compilefarm.client.farm_packages.FindRequest", lambda **_: FindRequest(key=key))
    assert packages.find(key).found
    answer = packages.find(OTHER_KEY)
    assert not answer.found
    assert "answered with a package of" in answer.reasons[0]


def test_farms_that_keep_no_packages_and_those_that_are_down_are_misses(signer: SigningKey, key_file: str) -> None:
    with serving_in_thread() as address:
        packages = packages_at(address, trusted=signer, key_file=key_file)
        assert "--cache-size-limit" in packages.find(KEY).reasons[0]
        assert "--cache-size-limit" in packages.publish(found())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        packages = packages_at(f"127.0.0.1:{silent.getsockname()[1]}", trusted=signer, key_file=key_file)
        clock = SystemClock()
        start = clock.now()
        for _ in range(50):
            assert "unreachable" in packages.find(KEY).reasons[0]
            assert "unreachable" in packages.publish(found())
        assert clock.now() - start < 5


def test_a_package_that_cannot_be_said_is_not_published(address: str, key: str, place: str, key_file: str) -> None:
    packages = packages_at(address, key_file=key_file)
    large: Found = replace(found(place=place), programs={"p1": ProgramRecord(request=bytes(40_000_000))})
    assert "are taken" in packages.publish(large)
    assert not packages.find(key).found


def test_a_pod_without_a_key_publishes_nothing(address: str, key: str, place: str, signer: SigningKey) -> None:
    packages = packages_at(address, trusted=signer)
    assert packages.publish(found(place=place)) == "there is no key to sign it with"
    assert not packages.find(key).found


@pytest.mark.parametrize("content", [None, b"no key"])
def test_a_signing_key_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"cannot be signed with .*key\.pem"):
        packages_at("127.0.0.1:1", key_file=str(tmp_path / "key.pem"))


def test_who_publishes_has_a_key() -> None:
    with pytest.raises(ConfigurationError, match="COMPILEFARM_PACKAGE_SIGNING_KEY"):
        ClientConfig(address="farm:1", dynamo="publish")
    assert ClientConfig(address="farm:1", dynamo="reuse").dynamo == "reuse"
