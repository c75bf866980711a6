"""`compilefarm doctor` about whom a farm believes, and how it is believed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from compilefarm.cli.checks import Check
from compilefarm.cli.trust_checks import check_trust
from compilefarm.core.digests import digest_of
from compilefarm.core.public_keys import PublicKey
from compilefarm.core.signatures import new_signing_key
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import Authority, serving_in_thread
from compilefarm.store.signing_policy import LocalSigner, SignedManifests
from compilefarm.v1.admin_service_pb2 import Trust
from tests.cli.commands import run_command

SIGNING_KEY = new_signing_key()
KEY, OTHER = SIGNING_KEY.public, new_signing_key().public
DAY_SECONDS = 86400


def judged(told: Trust, *, address: str = "farm.example:7077", trusted: tuple[PublicKey, ...] = ()) -> dict[str, Check]:
    checks = list(check_trust(told, address=address, trusted=trusted))
    assert all(bool(check.remedy) == (check.state != "ok") for check in checks)
    return {check.name.removeprefix("farm: "): check for check in checks}


@pytest.mark.parametrize(
    ("address", "state"),
    [("farm.example:7077", "warning"), ("10.0.0.1:7077", "warning"), ("127.0.0.1:7077", "ok"), ("[::1]:7077", "ok"),
     ("localhost:7077", "ok"), ("unix:/run/farm.sock", "ok")],
)  # fmt: skip
def test_a_farm_without_any_of_it_is_fine_within_a_machine_only(address: str, state: str) -> None:
    checks = judged(Trust(), address=address)
    assert {name: check.state for name, check in checks.items()} == dict.fromkeys(
        ("callers", "connection", "signatures"), state
    )


@pytest.mark.parametrize(("days", "state"), [(100, "ok"), (13, "warning"), (-1, "warning")])
def test_a_certificate_that_expires_soon_is_noticed(days: int, state: str) -> None:
    expires = Timestamp(seconds=int(time.time()) + days * DAY_SECONDS)
    assert judged(Trust(certificate_expires=expires))["connection"].state == state


@pytest.mark.parametrize(
    ("signs", "trusted", "state", "words"),
    [
        (KEY.text, (OTHER, KEY), "ok", "this machine trusts the key"),
        (KEY.text, (OTHER,), "failed", "everything is compiled here"),
        ("", (OTHER,), "failed", "the farm does not sign"),
        (KEY.text, (), "warning", "does not check"),
        ("", (), "warning", "not signed"),
    ],
)
def test_the_keys_have_to_match(signs: str, trusted: tuple[PublicKey, ...], state: str, words: str) -> None:
    check = judged(Trust(public_key=signs), trusted=trusted)["signatures"]
    assert check.state == state
    assert words in check.finding


def test_a_farm_says_whom_it_believes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def doctor(address: str) -> dict[str, dict[str, Any]]:
        run_command("doctor", "--address", address, "--json")
        return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}

    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    issued = authority.issue(expires=datetime.now(UTC) + timedelta(days=30.5))
    certificate, key = issued.write(tmp_path, name="farm")
    auth_file = tmp_path / "callers.toml"
    auth_file.write_text(
        'namespaces = ["prod", "dev"]\n[[callers]]\nname = "search"\nrole = "read"\nnamespace = "dev"\n'
        f'tokens = ["sha256:{digest_of(b"token")}"]\n'
    )
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(auth_file), tls_certificate=certificate, tls_key=key)
    monkeypatch.setenv("COMPILEFARM_TLS_CA", str(tmp_path / "ca.pem"))
    with serving_in_thread(config=config, signing=SignedManifests(LocalSigner(SIGNING_KEY))) as address:
        refused = doctor(address)["farm"]
        assert (refused["state"], "COMPILEFARM_TOKEN_FILE" in refused["remedy"]) == ("failed", True)
        monkeypatch.setenv("COMPILEFARM_TOKEN", "token")
        monkeypatch.setenv("COMPILEFARM_TRUSTED_KEYS", KEY.text)
        checks = doctor(address)
    assert checks["farm: callers"]["finding"] == (
        "they are asked who they are; this is 'search', role read, reads namespaces dev, prod"
    )
    assert checks["farm: connection"]["finding"] == "TLS; the certificate expires in 30.5 days"
    assert checks["farm: signatures"]["state"] == "ok"
    monkeypatch.delenv("COMPILEFARM_TLS_CA")
    monkeypatch.delenv("COMPILEFARM_TRUSTED_KEYS")
    with serving_in_thread(config=replace(config, auth_file="", tls_certificate="", tls_key="")) as address:
        checks = doctor(address)
    assert checks["farm: callers"]["finding"] == "nobody is asked who they are"
    assert checks["farm: connection"]["finding"] == "not encrypted"
