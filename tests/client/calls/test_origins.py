"""Pods that believe nobody but their farm."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from compilefarm.client.config import ClientConfig, ConfigurationError
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exports import Exports
from compilefarm.client.farm import Farm
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime, FarmServicer, serving
from compilefarm.client.trust import Trust
from compilefarm.core.errors import CorruptArtifact, FarmError, UntrustedArtifact
from compilefarm.core.signatures import SigningKey, new_signing_key
from compilefarm.v1.admin_service_pb2 import InspectRequest, InspectResponse
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from compilefarm.v1.blob_service_pb2_grpc import add_BlobServiceServicer_to_server
from compilefarm.v1.manifest_pb2 import Manifest

KEY = new_signing_key()
EXPORTED_KEY = f"{'a' * 16}-{'0' * 64}"
OTHER_KEY = f"{'f' * 16}-{'0' * 64}"


class Pod:
    """A pod that trusts KEY, and a farm whose reads are counted."""

    def __init__(self, address: str, servicer: FarmServicer, trusted: list[SigningKey]) -> None:
        self.runtime = FakeRuntime()
        self.servicer = servicer
        self.reads = 0
        servicer.on_read = self._count
        self.farm = Farm(
            address,
            trusted_keys=[key.public.text for key in trusted],
            dependencies=Dependencies(runtime=self.runtime),
        )

    def _count(self, content: bytes, offset_bytes: int) -> Iterator[bytes]:
        self.reads += 1
        yield content[offset_bytes:]

    def run(self) -> str:
        """Where the program comes from."""
        return str(self.farm.backend(FakeGraphModule(), [])(1)[0])


@pytest.fixture
def pod() -> Iterator[Callable[..., Pod]]:
    servicer, pods = FarmServicer(), []
    with serving(servicer) as address:

        def start(*trusted: SigningKey) -> Pod:
            pods.append(Pod(address, servicer, list(trusted)))
            return pods[-1]

        yield start
        for each in pods:
            each.farm.close()


def test_what_the_farm_has_signed_is_loaded(pod: Callable[..., Pod]) -> None:
    new = new_signing_key()
    trusting = pod(KEY, new)
    for key in (KEY, new):
        trusting.servicer.sign = key.sign
        assert trusting.run() == "farm"


def changed(manifest: Manifest) -> Manifest:
    signed = KEY.sign(manifest)
    signed.program.size_bytes += 1
    return signed


def of_another_graph(manifest: Manifest) -> Manifest:
    manifest.key = OTHER_KEY
    return manifest


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        (lambda manifest: manifest, "the artifact is not signed"),
        (new_signing_key().sign, f"and trusted are {KEY.public.key_id}"),
        (changed, "it was changed after"),
        (lambda manifest: KEY.sign(of_another_graph(manifest)), "the farm answered with the artifact of another graph"),
    ],
    ids=["unsigned", "foreign", "changed", "another graph"],
)
def test_nothing_else_is_so_much_as_fetched(
    sign: Callable[[Manifest], Manifest],
    words: str,
    pod: Callable[..., Pod],
    caplog: pytest.LogCaptureFixture,
) -> None:
    trusting = pod(KEY)
    trusting.servicer.sign = sign
    assert trusting.run() == "local"
    assert trusting.reads == 0
    (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "[untrusted_artifact]" in line
    assert words in line


def test_a_pod_without_keys_believes_its_farm(pod: Callable[..., Pod]) -> None:
    trusting = pod()
    assert trusting.run() == "farm"
    trusting.servicer.sign = new_signing_key().sign
    assert trusting.run() == "farm"


def test_no_pod_loads_the_artifact_of_another_graph(pod: Callable[..., Pod], caplog: pytest.LogCaptureFixture) -> None:
    trusting = pod()
    trusting.servicer.sign = of_another_graph
    assert trusting.run() == "local"
    assert trusting.reads == 0
    (line,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"{OTHER_KEY} instead of {trusting.servicer.compiles[-1]}" in line


def test_the_keys_of_the_environment_hold_for_every_farm(
    pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEFARM_TRUSTED_KEYS", f"{new_signing_key().public.text}, {KEY.public.text}")
    farm = Farm("farm:7077")
    assert farm._config.trust.trusted_keys[1] == KEY.public


def test_keys_without_what_checks_them_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "compilefarm.client.trust.find_spec", lambda name: None if name == "cryptography" else find_spec(name)
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'compilefarm\[signing\]'"):
        Farm("farm:7077", trusted_keys=[KEY.public.text])


class Answering(AdminServiceServicer):  # type: ignore[misc]
    """Shows one manifest for whatever is asked for."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def Inspect(self, request: InspectRequest, context: object) -> InspectResponse:
        del request, context
        return InspectResponse(manifest=self._manifest)


@pytest.mark.parametrize(
    ("manifest", "error", "said"),
    [
        (KEY.sign(Manifest(key=OTHER_KEY)), CorruptArtifact, f"the artifact '{OTHER_KEY}' instead of"),
        (new_signing_key().sign(Manifest(key=EXPORTED_KEY)), UntrustedArtifact, "is signed by key"),
        (Manifest(key=EXPORTED_KEY), UntrustedArtifact, "is not signed"),
    ],
)
def test_what_is_exported_is_what_was_asked_for_and_signed(
    manifest: Manifest, error: type[FarmError], said: str, tmp_path: Path
) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_AdminServiceServicer_to_server(Answering(manifest), server)
    # It is asked whether a farm answers at all.
    add_BlobServiceServicer_to_server(FarmServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    config = ClientConfig(address=address, trust=Trust(trusted_keys=(KEY.public,)))
    connection = Connection(config, clock=FakeClock())
    try:
        with pytest.raises(error, match=said):
            Exports(config, connection=connection, clock=FakeClock()).write(
                EXPORTED_KEY, tmp_path / "program", format="binary"
            )
    finally:
        connection.close()
        server.stop(None).wait()
    assert not (tmp_path / "program").exists()
