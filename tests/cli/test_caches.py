"""What `compilefarm status` and `doctor` say of torch's own caches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from compilefarm.cli import cache_checks
from compilefarm.cli.cache_checks import check_caches
from compilefarm.cli.checks import Check
from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_caches import FarmCaches
from compilefarm.core.signatures import new_signing_key
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from compilefarm.v1.admin_service_pb2 import CacheUsage, StatusResponse, Trust
from compilefarm.v1.cache_service_pb2 import TorchCache
from tests.cli.commands import run_command

ASKING = {"COMPILEFARM_ADDRESS": "farm:1", "COMPILEFARM_TORCH_CACHES": "yes"}
GRAPHS = {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1"}
PGO = {"TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "1"}
OFF = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
ALSO_OFF = {"TORCH_COMPILE_FORCE_DISABLE_CACHES": "1"}
KEEPING = StatusResponse(caches=CacheUsage(size_limit_bytes=50_000_000))


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    """A farm of which an entry was written, found, and another one was not."""
    store = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        config, clock = ClientConfig(address=address), SystemClock()
        connection = Connection(config, clock=clock)
        caches = FarmCaches(config, connection=connection, clock=clock)
        caches.keep(TorchCache.TORCH_CACHE_AUTOTUNE, "key", b"{}")
        assert caches.find(TorchCache.TORCH_CACHE_AUTOTUNE, "key") == b"{}"
        assert caches.find(TorchCache.TORCH_CACHE_AUTOTUNE, "other") is None
        connection.close()
        yield address


def checks(status: StatusResponse, environ: Mapping[str, str]) -> dict[str, Check]:
    return {check.name: check for check in check_caches(status, environ=environ)}


def test_status_says_what_is_kept_and_what_was_asked_for(farm: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("status", "--address", farm) == 0
    said = capsys.readouterr().out
    assert "1 entries, 16.4 kB of 50.0 MB, 0 evicted" in said
    assert "autotune: 1 hits, 0 sent ahead, 1 misses, 1 written" in said
    assert run_command("status", "--address", farm, "--json") == 0
    assert json.loads(capsys.readouterr().out)["caches"]["size_limit_bytes"] == "50000000"


def test_status_of_a_farm_that_keeps_none_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread() as address:
        assert run_command("status", "--address", address) == 0
    assert "caches" not in capsys.readouterr().out


def test_doctor_tells_it(farm: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**GRAPHS, "COMPILEFARM_ADDRESS": farm, "COMPILEFARM_TORCH_CACHES": "yes"}.items():
        monkeypatch.setenv(name, value)
    run_command("doctor", "--address", farm, "--json")
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    kept = "1 entries, 16.4 kB of 50.0 MB; 1 of 2 questions found one, 0 more sent ahead"
    assert found["farm: torch's caches"]["finding"] == kept
    assert found["torch's caches"]["finding"] == "the farm is asked: TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"
    assert found["torch's caches: farm"]["finding"] == "everybody may read and write entries"


def test_a_pod_that_asks_for_none_is_told_no_more_than_what_the_farm_keeps() -> None:
    assert [check.name for check in check_caches(KEEPING, environ={})] == ["farm: torch's caches"]


@pytest.mark.parametrize(
    ("status", "environ", "name", "state", "said"),
    [
        (KEEPING, GRAPHS, "torch's caches", "warning", "COMPILEFARM_TORCH_CACHES=yes"),
        (KEEPING, ASKING, "torch's caches", "warning", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE=1"),
        (KEEPING, ASKING | PGO, "torch's caches", "warning", "TORCH_COMPILE_JOB_ID"),
        (KEEPING, ASKING | GRAPHS | OFF, "torch's caches", "warning", "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
        (KEEPING, ASKING | GRAPHS | ALSO_OFF, "torch's caches", "warning", "unset TORCH_COMPILE_FORCE_DISABLE_CACHES"),
        (StatusResponse(), ASKING | GRAPHS, "torch's caches: farm", "failed", "--cache-size-limit"),
    ],
    ids=["torch asks Redis", "no switch", "no job", "all off", "all off in another word", "nothing kept"],
)
def test_what_is_missing_is_told_with_a_remedy(
    status: StatusResponse, environ: Mapping[str, str], name: str, state: str, said: str
) -> None:
    check = checks(status, environ)[name]
    assert check.state == state
    assert said in check.remedy


@pytest.mark.parametrize(
    ("role", "state"), [("compile", "failed"), ("compile, cache-read", "ok"), ("cache-write", "ok")]
)
def test_a_caller_without_a_role_for_them_is_told(role: str, state: str) -> None:
    status = StatusResponse(caches=CacheUsage(), trust=Trust(asks_callers=True, caller="pod", role=role))
    assert checks(status, ASKING | GRAPHS)["torch's caches: farm"].state == state


def test_a_pod_that_trusts_keys_and_has_none_is_told_that_it_writes_nothing(tmp_path: Path) -> None:
    name, trusting = "torch's caches: signatures", {"COMPILEFARM_TRUSTED_KEYS": new_signing_key().public.text}
    assert name not in checks(KEEPING, ASKING | GRAPHS)
    check = checks(KEEPING, ASKING | GRAPHS | trusting)[name]
    assert (check.state, "COMPILEFARM_CACHE_SIGNING_KEY" in check.remedy) == ("warning", True)
    signing = {"COMPILEFARM_CACHE_SIGNING_KEY": str(tmp_path / "key.pem")}
    assert checks(KEEPING, ASKING | GRAPHS | trusting | signing)[name].state == "ok"


def test_where_compilefarm_is_only_on_the_path_compile_workers_are_said_not_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checks(KEEPING, ASKING | GRAPHS)["torch's caches: compile workers"].state == "ok"
    monkeypatch.setattr(cache_checks.importlib.metadata, "entry_points", lambda **_: ())
    assert checks(KEEPING, ASKING | GRAPHS)["torch's caches: compile workers"].state == "warning"
