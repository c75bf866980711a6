"""TLS between real clients and real gateways: right ones meet, wrong ones part quickly with a line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from compilefarm.client.config import ClientConfig, ConfigurationError, read_config
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.testing import FakeClock, FakeGraphModule, FakeRuntime
from compilefarm.client.trust import Trust
from compilefarm.core.errors import NotAllowed, NotAuthenticated, Unreachable
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.service.testing import Authority, serving_in_thread
from compilefarm.v1.admin_service_pb2 import ListJobsRequest, StatusRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.blob_service_pb2 import FindMissingRequest

SPIFFE = "spiffe://cluster.example/ns/search"


class Place:
    """An authority, and a folder with what it issued."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.write("ca.pem", self.authority.certificate)
        self.certificate, self.key = self.authority.issue().write(folder, name="farm")
        self.config = GatewayConfig(listen="127.0.0.1:0", tls_certificate=self.certificate, tls_key=self.key)

    def write(self, name: str, content: bytes) -> str:
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)

    def asking(self, *callers: tuple[str, str]) -> GatewayConfig:
        """A farm that asks callers for certificates: a name in it, and the role."""
        entries = [f'[[callers]]\nname = "{n}"\nrole = "{role}"\ncertificates = ["{n}"]' for n, role in callers]
        auth_file = self.write("callers.toml", "\n".join(entries).encode())
        return replace(self.config, auth_file=auth_file, tls_client_ca=self.ca)

    def client(self, name: str, *, names: tuple[str, ...] = ()) -> Trust:
        """A client with a certificate."""
        certificate, key = self.authority.issue(name, names=names).write(self.folder, name="pod")
        return Trust(tls_ca=self.ca, tls_certificate=certificate, tls_key=key)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def connected(address: str, trust: Trust) -> Iterator[Connection]:
    connection = Connection(ClientConfig(address=address, trust=trust), clock=FakeClock())
    try:
        with connection.calls():
            yield connection
    finally:
        connection.close()


def greet(address: str, trust: Trust) -> None:
    with connected(address, trust) as connection:
        connection.stubs().blobs.FindMissing(FindMissingRequest())


def jobs(address: str, trust: Trust) -> None:
    with connected(address, trust) as connection:
        AdminServiceStub(connection.stubs().channel).ListJobs(ListJobsRequest())


def status(address: str, trust: Trust) -> None:
    with connected(address, trust) as connection:
        AdminServiceStub(connection.stubs().channel).Status(StatusRequest())


def test_a_farm_and_a_client_that_trust_the_same_authority_meet(place: Place) -> None:
    with serving_in_thread(config=place.config) as address:
        greet(address, Trust(tls_ca=place.ca))
        greet(address.replace("127.0.0.1", "localhost"), Trust(tls_ca=place.ca))


@pytest.mark.parametrize(
    ("farm", "client", "words"),
    [
        ("tls", "clear", "a farm with TLS does on whom has no COMPILEFARM_TLS_CA"),
        ("clear", "tls", "it does not speak TLS: unset COMPILEFARM_TLS_CA"),
        ("tls", "other authority", "COMPILEFARM_TLS_CA did not issue its certificate"),
        ("other name", "tls", "its certificate is for other names than this address"),
        ("asking", "tls", "not the COMPILEFARM_TLS_CERTIFICATE that it asks for"),
        ("asking", "foreign certificate", "not the COMPILEFARM_TLS_CERTIFICATE that it asks for"),
    ],
)
def test_those_that_do_not_fit_part_quickly_and_the_pod_compiles_locally(
    farm: str, client: str, words: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority("another")
    elsewhere = place.authority.issue(names=["farm.example"]).write(place.folder, name="elsewhere")
    foreign = stranger.issue("search").write(place.folder, name="foreign")
    config = {
        "tls": place.config,
        "clear": GatewayConfig(listen="127.0.0.1:0"),
        "other name": replace(place.config, tls_certificate=elsewhere[0], tls_key=elsewhere[1]),
        "asking": place.asking(("search", "admin")),
    }[farm]
    trust = {
        "tls": Trust(tls_ca=place.ca),
        "clear": Trust(),
        "other authority": Trust(tls_ca=place.write("other.pem", stranger.certificate)),
        "foreign certificate": Trust(tls_ca=place.ca, tls_certificate=foreign[0], tls_key=foreign[1]),
    }[client]
    runtime = FakeRuntime()
    with serving_in_thread(config=config) as address:
        farm_ = Farm(
            address,
            tls_ca=trust.tls_ca,
            tls_certificate=trust.tls_certificate,
            tls_key=trust.tls_key,
            dependencies=Dependencies(runtime=runtime),
        )
        assert farm_.backend(FakeGraphModule(), [])(1) == ("local", {}, (1,))
        farm_.close()
    assert words in caplog.text


def test_a_certificate_names_its_caller(place: Place) -> None:
    with serving_in_thread(
        config=place.asking((SPIFFE, "read"), ("ops.example", "admin"), ("pod", "admin"))
    ) as address:
        status(address, place.client("anything", names=(SPIFFE,)))
        with pytest.raises(NotAllowed, match=f"'{SPIFFE}' has role 'read'"):
            jobs(address, place.client("anything", names=(SPIFFE,)))
        jobs(address, place.client("anything", names=("other.example", "ops.example")))
        # A common name counts where there are no other names.
        jobs(address, place.client("pod"))
        with pytest.raises(NotAuthenticated, match=r"no caller whose certificate is for other\.example"):
            jobs(address, place.client("pod", names=("other.example",)))


def test_a_token_goes_before_a_certificate(place: Place) -> None:
    with serving_in_thread(config=place.asking(("pod", "admin"))) as address:
        trust = place.client("pod")
        jobs(address, trust)
        with pytest.raises(NotAuthenticated, match="does not know the token"):
            jobs(address, replace(trust, token="wrong"))


def test_a_certificate_is_renewed_while_the_farm_runs(place: Place) -> None:
    successor = Authority("its successor")
    new_ca = place.write("new-ca.pem", successor.certificate)
    with serving_in_thread(config=place.config) as address:
        greet(address, Trust(tls_ca=place.ca))
        with connected(address, Trust(tls_ca=place.ca)) as early:
            early.stubs()
            successor.issue().write(place.folder, name="farm")
            greet(address, Trust(tls_ca=new_ca))
            with pytest.raises(Unreachable, match="did not issue its certificate"):
                greet(address, Trust(tls_ca=place.ca))
            # Who is connected stays so.
            early.stubs().blobs.FindMissing(FindMissingRequest())


def test_a_renewal_that_is_half_done_is_not_used(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with serving_in_thread(config=place.config) as address:
        renewed = place.authority.issue()
        place.write("farm.pem", renewed.certificate)
        greet(address, Trust(tls_ca=place.ca))
        assert "is not the key of the certificate" in caplog.text
        place.write("farm-key.pem", renewed.key)
        caplog.clear()
        greet(address, Trust(tls_ca=place.ca))
        assert "was read again" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls_key": ""}, "belong together: give --tls-certificate and --tls-key"),
        ({"tls_certificate": ""}, "belong together: give --tls-certificate and --tls-key"),
        ({"tls_client_ca": "ca.pem"}, "give --tls-certificate and --tls-key for TLS, and --auth"),
        ({"tls_certificate": "missing.pem"}, r"the certificate .*missing\.pem cannot be read: No such file"),
        ({"tls_certificate": "garbage.pem"}, r"garbage\.pem is no certificate in PEM"),
        ({"tls_key": "garbage.pem"}, r"garbage\.pem is no private key in PEM"),
        ({"tls_key": "pod-key.pem"}, r"pod-key\.pem is not the key of the certificate"),
        ({"tls_certificate": "old.pem", "tls_key": "old-key.pem"}, r"old\.pem has expired at"),
    ],
)
def test_a_farm_does_not_start_with_files_that_it_cannot_use(
    change: dict[str, str], message: str, place: Place
) -> None:
    place.write("garbage.pem", b"-----BEGIN NONSENSE-----")
    place.client("pod")
    place.authority.issue(expires=datetime.now(UTC) - timedelta(days=1)).write(place.folder, name="old")
    paths = {field: str(place.folder / name) if name else "" for field, name in change.items()}
    with pytest.raises(CannotStart, match=message), serving_in_thread(config=replace(place.config, **paths)):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls_ca": "missing.pem"}, r"missing\.pem cannot be used for TLS \(No such file"),
        ({"tls_ca": "garbage.pem"}, r"garbage\.pem cannot be used for TLS \(no PEM that fits"),
        ({"tls_certificate": "garbage.pem"}, r"garbage\.pem with .*pod-key\.pem cannot be used"),
        ({"tls_key": "farm-key.pem"}, r"farm-key\.pem cannot be used"),
    ],
)
def test_a_client_does_not_speak_in_clear_when_its_files_cannot_be_used(
    change: dict[str, str], message: str, place: Place
) -> None:
    place.write("garbage.pem", b"-----BEGIN NONSENSE-----")
    trust = replace(place.client("pod"), **{field: str(place.folder / name) for field, name in change.items()})  # type: ignore[arg-type]
    with serving_in_thread() as address, pytest.raises(Unreachable, match=message):
        greet(address, trust)


def test_the_files_are_named_by_the_environment(place: Place) -> None:
    environ = {
        "COMPILEFARM_ADDRESS": "farm:7077",
        "COMPILEFARM_TLS_CA": "ca",
        "COMPILEFARM_TLS_CERTIFICATE": "certificate",
        "COMPILEFARM_TLS_KEY": "key",
    }
    assert read_config(environ).trust == Trust(tls_ca="ca", tls_certificate="certificate", tls_key="key")
    for missing in ("COMPILEFARM_TLS_CA", "COMPILEFARM_TLS_KEY"):
        with pytest.raises(ConfigurationError, match="give"):
            read_config({name: value for name, value in environ.items() if name != missing})
