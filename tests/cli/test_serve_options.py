"""What the options of `compilefarm serve` set."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from compilefarm.cli import serve
from compilefarm.core.errors import StoreFull
from compilefarm.core.pool import NoToolchains
from compilefarm.service.config import CannotStart, GatewayConfig
from compilefarm.serving import pools
from compilefarm.serving.config import ServeConfig, read_config
from compilefarm.serving.farm import open_kept_caches
from compilefarm.serving.pools import kept_from_compiles
from compilefarm.worker.pool import PoolSettings


def settings(*arguments: str) -> ServeConfig:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return read_config(parser.parse_args(arguments))


def config(*arguments: str) -> GatewayConfig:
    return settings(*arguments).gateway()


def test_without_options_the_defaults_hold() -> None:
    assert config() == GatewayConfig()


def test_every_option_reaches_the_gateway() -> None:
    given = config(
        *("--listen", "[::]:1", "--insecure"),
        *("--metrics-listen", "127.0.0.1:9100"),
        *("--auth", "a", "--tls-certificate", "b", "--tls-key", "c", "--tls-client-ca", "d"),
        *("--metrics-listen", "127.0.0.1:9100", "--record", "recording"),
        *("--verify", "after"),
        *("--queue-limit", "7", "--tenant-limit", "3", "--orphan-grace", "0"),
    )
    assert given == GatewayConfig(
        listen="[::]:1",
        metrics_listen="127.0.0.1:9100",
        insecure=True,
        auth_file="a",
        tls_certificate="b",
        tls_key="c",
        tls_client_ca="d",
        record="recording",
        max_queued_jobs=7,
        max_queued_jobs_of_tenant=3,
        orphan_seconds=0.0,
        verify="after",
    )


def test_every_limit_of_compiles_reaches_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PoolSettings] = []
    monkeypatch.setattr(pools, "LocalPool", lambda given, **_: made.append(given))
    monkeypatch.setattr(pools, "CompositePool", list)
    limits = ("--compile-timeout", "60", "--memory-limit", "8", "--disk-limit", "1GB", "--slots", "2")
    options = ("--verify", "off", "--import", "my_ops", "--allow-triton-kernels")
    pools.make_pool(settings("--device", "cpu", "--sandbox", "off", *limits, *options), toolchains=NoToolchains())
    (given,) = made
    assert (given.compile_seconds, given.memory_bytes, given.disk_bytes) == (60, 8 * 10**9, 10**9)
    assert (given.slots, given.shares, given.cuda_devices, given.sandbox) == (2, 2, (), None)
    assert (given.verify, given.modules, given.triton_kernels) == (False, ("my_ops",), True)


def test_each_farm_keeps_its_accepted_jobs_in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    folders = [
        settings(*arguments).state_folder()
        for arguments in ([], ["--store", "/other"], ["--listen", "127.0.0.1:1"], ["--state", "/mine"])
    ]
    assert folders[0] == settings().state_folder()
    assert len(set(folders)) == 4
    assert all(str(folder).startswith("/state/compilefarm/") for folder in folders[:3])
    assert str(folders[3]) == "/mine"


def test_what_a_farm_keeps_is_kept_from_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = settings(
        *("--store", "store", "--state", "/state", "--auth", "/callers.toml", "--signing-key", "key.pem"),
        *("--tls-certificate", "/public.pem", "--tls-key", "/private.pem", "--record", "~/recordings"),
    )
    monkeypatch.setenv("HOME", "/home/farm")
    kept = {Path(path) for path in ("/state", "/callers.toml", "/private.pem", "/home/farm/recordings")}
    kept |= {tmp_path / "store", tmp_path / "key.pem"}
    assert set(kept_from_compiles(given)) == kept
    remote = settings("--store", "s3://bucket/farm", "--state", "/state", "--signer", "unix:/run/signer")
    assert set(kept_from_compiles(remote)) == {Path("/state"), Path("/run/signer")}


def test_the_store_can_be_limited() -> None:
    assert settings().store_size_limit is None
    assert settings("--store-size-limit", "50GB").store_size_limit == 50 * 10**9


async def test_entries_of_caches_are_kept_where_they_are_given_room(tmp_path: Path) -> None:
    assert await open_kept_caches(settings("--store", str(tmp_path))) is None
    caches = await open_kept_caches(settings("--store", str(tmp_path), "--cache-size-limit", "1MB"))
    assert caches is not None
    await caches.reserve({"": 1_000_000}, namespace="")
    with pytest.raises(StoreFull, match="1000001 bytes"):
        await caches.reserve({"": 1_000_001}, namespace="")


@pytest.mark.parametrize("option", ["--queue-limit", "--tenant-limit"])
def test_a_queue_without_room_is_no_queue(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config(option, "0")
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


def test_workers_of_other_interpreters_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    given = settings("--worker", f"torch-2.11={sys.executable}", "--worker", f"b={sys.executable}")
    assert given.interpreters() == dict.fromkeys(("default", "torch-2.11", "b"), sys.executable)
    for wrong, words in (
        (sys.executable, "does not begin with a name"),
        (f"a b={sys.executable}", "does not begin with a name"),
        ("a=/nowhere/python", "'/nowhere/python', the interpreter of a, is no program"),
    ):
        with pytest.raises(SystemExit):
            settings("--worker", wrong)
        assert words in capsys.readouterr().err


def test_two_environments_of_one_name_are_refused() -> None:
    with pytest.raises(CannotStart, match="two environments default"):
        settings("--worker", f"default={sys.executable}").interpreters()
