"""What `compilefarm doctor` says of packages of Dynamo."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilefarm.cli.package_checks import check_packages
from compilefarm.core.signatures import new_signing_key
from compilefarm.v1.admin_service_pb2 import CacheUsage, StatusResponse, Trust

POD = {"COMPILEFARM_ADDRESS": "farm:1", "COMPILEFARM_DYNAMO": "reuse"}
KEY = new_signing_key()
TRUSTING = {**POD, "COMPILEFARM_TRUSTED_PACKAGE_KEYS": KEY.public.text}


def status(role: str = "", *, keeps: bool = True) -> StatusResponse:
    caches = CacheUsage(size_limit_bytes=1) if keeps else None
    return StatusResponse(caches=caches, trust=Trust(asks_callers=bool(role), caller="search", role=role))


def states(given: StatusResponse, environ: dict[str, str]) -> list[str]:
    return [check.state for check in check_packages(given, environ=environ)]


def test_where_they_are_off_nothing_is_said() -> None:
    assert states(status(), {"COMPILEFARM_ADDRESS": "farm:1"}) == []


def test_a_pod_that_trusts_no_key_is_told_that_it_installs_nothing() -> None:
    first, _ = check_packages(status(), environ=POD)
    assert (first.state, first.remedy.split()[1]) == ("warning", "COMPILEFARM_TRUSTED_PACKAGE_KEYS")
    first, _ = check_packages(status(), environ=TRUSTING)
    assert first.state == "ok"
    assert KEY.public.text in first.finding


def test_a_publisher_trusts_itself_and_needs_a_key_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    environ = {**POD, "COMPILEFARM_DYNAMO": "publish", "COMPILEFARM_PACKAGE_SIGNING_KEY": str(path)}
    assert states(status(), environ) == ["failed", "ok"]
    path.write_bytes(KEY.pem())
    assert states(status(), environ) == ["ok", "ok"]


@pytest.mark.parametrize(
    ("given", "state", "remedy"),
    [
        (status(keeps=False), "failed", "--cache-size-limit"),
        (status("compile"), "failed", "package-read"),
        (status("compile, package-read"), "ok", ""),
        (status("publish"), "ok", ""),
        (status(), "ok", ""),
    ],
    ids=["keeps none", "no role", "reads", "publishes", "asks nobody"],
)
def test_whether_the_farm_gives_some_is_said(given: StatusResponse, state: str, remedy: str) -> None:
    _, farm = check_packages(given, environ=TRUSTING)
    assert farm.state == state
    assert remedy in farm.remedy
